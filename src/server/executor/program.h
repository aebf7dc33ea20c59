#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "marshal/decode.h"
#include "server/executor/call_plan.h"
#include "server/executor/storage_table.h"
#include "wire/program.h"

namespace torch_remote::server {

// One step of a program: a call, or a change of settings. In the slots the program's numbers of
// storages stand where a call has names.
struct ProgramStep {
  std::shared_ptr<const CallPlan> call;  // null: a change of settings
  marshal::Slots slots;
  wire::Context settings;
  std::vector<uint32_t> last_used;  // the temporaries that no later step mentions
};

// A list of calls: Note [Programs] in wire/program.h. Made step by step, then only run. Confined to
// the executor thread.
class Program {
 public:
  // Throws ProtocolError, as the others do, for what our client never sends.
  Program(wire::ProgramHead head, unsigned devices);

  void add_settings(wire::Context settings);
  // Of a call with these slots.
  void add_call(std::shared_ptr<const CallPlan> call, const marshal::Slots& slots);
  // After the last step.
  void finish();

  // From now on these storages are others.
  void change(std::span<const wire::ChangedStorage> changed);

  uint64_t name() const { return name_; }

  const std::vector<wire::ProgramStorage>& storages() const { return storages_; }

  const std::vector<ProgramStep>& steps() const { return steps_; }

  bool has_settings() const { return has_settings_; }

  // A fresh output of a step.
  struct Made {
    uint32_t number;
    uint8_t device;
    uint64_t nbytes;
  };

  // The named storages that are fresh outputs, and those that steps write besides.
  const std::vector<Made>& made() const { return made_; }

  const std::vector<uint32_t>& written() const { return written_; }

  // About how much memory it takes, without its plans.
  uint64_t bytes() const { return bytes_; }

 private:
  // The views of a storage move to so many bytes behind where their steps say.
  void shift(uint64_t number, int64_t bytes);

  bool is_temporary(uint64_t number) const { return storages_[number].name == 0; }

  void check_number(uint64_t number) const;
  // `number` is mentioned by the next step.
  void mention(uint64_t number);
  // The next step's fresh outputs on the device; `number` points to the first one's.
  void add_outputs(const std::vector<wire::Output>& outputs, uint8_t device,
                   const uint64_t*& number);

  uint64_t name_;
  std::vector<wire::ProgramStorage> storages_;
  std::vector<ProgramStep> steps_;
  std::vector<Made> made_;
  std::vector<uint32_t> written_;
  std::vector<int64_t> shifts_;  // in bytes, by number
  bool has_settings_ = false;
  uint64_t bytes_ = 0;

  // While it is made, by number: the last step that mentions it, plus one; 0: none does.
  std::vector<uint32_t> last_step_;
  std::vector<bool> is_written_;
};

// The storages of a program that runs, by its numbers. Kept between runs, to save allocations.
// Confined to the executor thread.
class ProgramStorages {
 public:
  ProgramStorages(const Devices& devices, StorageTable& table) : devices_(devices), table_(table) {}

  // Finds the named ones; makes fresh outputs that are not there. Throws ProtocolError if another
  // is not.
  void begin(const Program& program, Origin run);
  // A temporary is made at its first mention.
  Entry& at(const Program& program, uint64_t number);
  // Frees a temporary, if it was made.
  void free(uint64_t number);
  // Frees what is left.
  void end();

 private:
  const Devices& devices_;
  StorageTable& table_;
  Origin run_;
  std::vector<Entry*> entries_;                       // null: a temporary that is not there
  std::vector<StorageTable::Temporary> temporaries_;  // by number
};

}  // namespace torch_remote::server
