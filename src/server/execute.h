#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "marshal/decode.h"
#include "server/call_log.h"
#include "server/devices.h"
#include "server/failures.h"
#include "server/generators.h"
#include "server/operators.h"
#include "server/storage_table.h"
#include "wire/messages.h"

namespace torch_remote::server {

// A signature of the session's client.
struct CallPlan {
  marshal::Plan plan;
  const Operator* operation = nullptr;  // lives as long as the session
  uint64_t slot = 0;                    // where the client keeps it
};

// Runs calls. Confined to the executor thread, which is in inference mode.
//
// Note [Poison]
//
// An error belongs to the storages that a call would have written, and carries the first cause. What
// a failing call makes or writes is poisoned. A call that reads poison, or a storage that is marked
// skipped, is skipped: the storages that it makes are poisoned with the same cause, those that it
// writes keep their bytes and are marked *skipped*: they are not what the client's program says. When
// its user has been told of the cause, HEAL takes the marks away, as if those calls had not been made.
// Poison and marks also go away when a storage is overwritten whole: by an upload, or as an output
// that the operator does not read. Where several causes meet, the one that came first counts.
//
// Part of an update may read nothing of what failed (momentum.mul_(0.9) before momentum.add_(gradient)). So, after a
// failure, the bytes of an older storage are kept before a call writes it. If a call on it is skipped later, HEAL
// puts them back; one that undoes puts back all that were kept. They are dropped when the client is told a value made
// since, for what it has seen is not undone; when another call fails; and all together when there is no room for one.
class Executor {
 public:
  // Without a call log nothing is logged.
  Executor(const Devices& devices, StorageTable& storages, Generators& generators,
           Failures& failures, CallLog* call_log)
      : devices_(devices),
        storages_(storages),
        generators_(generators),
        failures_(failures),
        call_log_(call_log) {}

  // Throws ProtocolError and ConnectionError only: what the operator does wrong becomes poison.
  void call(const CallPlan& call, const marshal::Slots& slots);

  // The same for a call whose outputs the client could not predict: it is told, also how `out=`
  // tensors were resized. Fresh outputs get the names first, first + 1, … first + names - 1. On failure `failure` is set, and nothing has
  // been named.
  struct Answer {
    std::vector<wire::Result> results;
    Poison failure;
  };

  Answer query(const CallPlan& call, const marshal::Slots& slots, uint64_t first, uint64_t names);

  // An upload or a resize begins: it is numbered as calls are.
  void begin_other() { ++number_; }

  // An upload is about to write the storage.
  void keep_other(Entry& entry);

  // It has failed, and its storage is poisoned.
  void fail_other(std::exception_ptr cause, const std::string& what, Entry& entry);

  // The devices have done everything up to here.
  void note_good() { last_good_ = number_; }

  // Which calls it can have been.
  void locate(wire::Error& lost) const;

  // The user has been told of the failure with this number.
  void heal(const wire::Heal& message);

  // The client is told what calls have made.
  void note_told() {
    if (keeping_for_ != nullptr)
      stop_keeping();
  }

  // The client is told the value of a storage. One that is as it was before the failure tells nothing of what came after.
  void note_told(const Entry& entry) {
    if (keeping_for_ != nullptr && (entry.made > keeping_for_->made || entry.has_kept()))
      stop_keeping();
  }

  // Why the last call has not done what it was to do: it failed, or read poison. Null: it has.
  const Poison& outcome() const { return outcome_; }

  // The client waits for the last call and raises its failure: what it was to write keeps its bytes, as locally. Of use
  // until let_go().
  void forgive();

  // Forgets the last call's storages: they may be freed now.
  void let_go() {
    entries_.clear();
    tensors_.clear();
  }

  uint64_t calls() const { return calls_; }

  uint64_t failures() const { return failed_; }

  uint64_t mispredicted() const { return mispredicted_; }

 private:
  // The storages that the call mentions, by number; those that it makes are made.
  void meet_storages(const marshal::Plan& plan, const marshal::Slots& slots);
  // Why the call cannot run; null: it can.
  Poison find_cause(const marshal::Plan& plan, const marshal::Slots& slots) const;
  // Null: the results are on the stack. What fails while the client waits is raised there as it would be locally, so
  // the tensors that it was to write are not poisoned.
  Poison run(const CallPlan& call, const marshal::Slots& slots, bool is_waited_for);
  void invoke(const CallPlan& call, const marshal::Slots& slots);
  void resolve_tensors(const marshal::Plan& plan, const marshal::Slots& slots);
  void find_generators(const CallPlan& call, const marshal::Slots& slots);
  void use_device(uint8_t device);
  // Whether the kernel left the tensors that it wrote as they were; `resized_` has those where it did not.
  void check_written(const CallPlan& call, const marshal::Slots& slots);
  void clear_taint(const marshal::Plan& plan, const marshal::Slots& slots);
  void skip(const marshal::Plan& plan, const Poison& cause);
  // Keeps what the call is to write, while keeping_for_ is set.
  void keep_targets(const marshal::Plan& plan);
  void stop_keeping();
  void poison_targets(const marshal::Plan& plan, const Poison& poison, bool only_fresh);
  // The failure of a call, noted as its outcome.
  Poison note_failure(std::exception_ptr cause, const CallPlan& call);
  Poison remember_failure(wire::Error error);
  Poison fail(std::exception_ptr cause, const CallPlan& call, bool is_waited_for);

  void store_outputs(const CallPlan& call, const marshal::Slots& slots);
  void store_output(const CallPlan& call, const wire::Output& output, c10::IValue value,
                    const uint64_t*& name);
  void store_fresh(const CallPlan& call, const wire::Output& output, at::Tensor tensor,
                   uint64_t name);
  void poison_outputs(const CallPlan& call, const std::vector<wire::Output>& outputs,
                      const Poison& poison, const uint64_t*& name);
  std::vector<wire::Result> describe_results(uint64_t first, uint64_t names);

  const Devices& devices_;
  StorageTable& storages_;
  Generators& generators_;
  Failures& failures_;
  CallLog* const call_log_;
  int current_device_ = -1;
  uint64_t calls_ = 0;
  uint64_t failed_ = 0;
  Poison keeping_for_;   // the newest failure, until note_told()
  uint64_t number_ = 0;  // Note [Numbers of calls] in wire/messages.h
  uint64_t last_good_ = 0;
  const Operator* last_operation_ = nullptr;
  uint64_t mispredicted_ = 0;
  bool has_marks_ = false;  // a storage may be marked skipped, or its bytes kept
  Poison outcome_;

  // Of the call being run; kept so that running one allocates little.
  torch::jit::Stack stack_;
  c10::SmallVector<Entry*, 16> entries_;
  c10::SmallVector<at::Tensor, 16> tensors_;
  c10::SmallVector<at::Generator, 2> call_generators_;
  c10::SmallVector<std::pair<uint32_t, at::Tensor>, 4> written_;  // of plan.tensors
  std::vector<wire::Result> resized_;                             // of those, for the answer
  std::vector<const c10::TensorImpl*> arguments_;
};

}  // namespace torch_remote::server
