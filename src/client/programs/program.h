#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Storage.h>

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

// What a recorder has recorded.
struct Recorded {
  Session* session = nullptr;
  uint8_t device = 0;  // of the first call
  std::vector<ProgramStep> steps;
  std::vector<CallSite> sites;  // of the steps
  wire::Writer slots;
  std::vector<wire::ProgramStorage> storages;
  std::vector<c10::Storage> held;           // the named ones, which keep their names so
  std::vector<StorageRecord*> made;         // what of these is a fresh output
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

  // One message. Sends the program too, if the server does not have it. Raises an error of this
  // thread that is known by now.
  void run();

  // How many calls a run makes.
  uint64_t calls() const { return calls_; }

  // "aten::mm, train.py:12" for each call, in order.
  std::vector<std::string> describe_calls() const;

 private:
  SentPrograms::Size size() const;
  void send(Submission& at, CallSite site);
  void announce_signatures(Submission& at);

  Recorded recorded_;  // signatures change under the submit lock
  const uint64_t name_;
  const uint64_t calls_;
};

}  // namespace torch_remote::client
