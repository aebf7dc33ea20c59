#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "client/capture/record.h"
#include "client/process/lines.h"
#include "client/session/sent_programs.h"
#include "client/session/submission.h"
#include "wire/program.h"

namespace torch_remote::client {

// A call, or a change of settings.
struct ProgramStep {
  SignaturePtr signature;            // null: a change of settings
  std::vector<uint32_t> defaults{};  // where the server's operator is another: defaults_of()
  wire::Context settings{};
  size_t begin = 0;  // of its slots in Recorded::slots
  size_t end = 0;
};

// A storage that has a name in a program.
struct NamedStorage {
  uint32_t number = 0;  // in the program
  StorageRecord* record = nullptr;
  bool is_made = false;    // a fresh output of a step
  int64_t shift = 0;       // in bytes: is added to the place where each view begins
  c10::Storage storage{};  // null: the caller of run() keeps it
};

// By how many each run changes a version counter that is autograd's, of tensors that it writes.
struct NewVersions {
  c10::VariableVersion counter;
  uint32_t count = 0;
};

// What a recorder has recorded.
struct Recorded {
  Session* session = nullptr;
  uint8_t device = 0;  // of the first call
  std::vector<ProgramStep> steps;
  std::vector<CallSite> sites;  // of the steps
  wire::Writer slots;
  std::vector<wire::ProgramStorage> storages;
  std::vector<NamedStorage> named;          // those with a name, which they keep so
  std::vector<at::Generator> generators{};  // that steps draw from, which keep theirs
};

// Calls that were recorded, and can be run as often as one likes: Note [Programs] in
// wire/program.h. Thread-safe.
class Program {
 public:
  // Raises NotImplementedError where the server does not run programs.
  explicit Program(Recorded recorded);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Before run(), and before its outputs are made. Raises an error of this thread that is known by
  // now, and where the thread records a graph.
  void prepare_run();
  // One message. Sends the program too, if the server does not have it. `changed`: storages that
  // take the place of those with their numbers, in this run and in later ones.
  void run(std::span<const NamedStorage> changed = {});

  Session& session() const { return *recorded_.session; }

  // How many calls a run makes.
  uint64_t calls() const { return calls_; }

  // "aten::mm, train.py:12" for each call, in order.
  std::vector<std::string> describe_calls() const;

 private:
  SentPrograms::Size size() const;
  // What a RUN must say, so that the program has these storages.
  std::vector<wire::ChangedStorage> change(std::span<const NamedStorage> changed);
  void send(Submission& at, CallSite site);
  void announce_signatures(Submission& at);

  Recorded recorded_;            // signatures and names of storages change under the submit lock
  std::vector<int64_t> shifts_;  // by number, what the server has; under the submit lock
  const uint64_t name_;
  const uint64_t calls_;
  std::vector<uint8_t> devices_;  // of the calls
};

}  // namespace torch_remote::client
