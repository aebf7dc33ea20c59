#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/programs/call_by_call.h"
#include "client/programs/recorded.h"
#include "client/session/sent_programs.h"
#include "client/session/submission.h"

namespace torch_remote::client {

// Calls that were recorded, and can be run as often as one likes: Note [Programs] in
// wire/program.h. Thread-safe.
class Program {
 public:
  // Where the server does not run programs: kRefuse raises NotImplementedError, with kCallByCall a
  // run makes the calls one by one; then no storage may change.
  enum class Without : uint8_t { kRefuse, kCallByCall };

  explicit Program(Recorded recorded, Without without = Without::kRefuse);
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
  void submit_run(std::span<const NamedStorage> changed);
  SentPrograms::Size size() const;
  // What a RUN must say, so that the program has these storages.
  std::vector<wire::ChangedStorage> change(std::span<const NamedStorage> changed);
  void send(Submission& at, CallSite site);
  void announce_signatures(Submission& at);

  Recorded recorded_;            // signatures and names of storages change under the submit lock
  std::vector<int64_t> shifts_;  // by number, what the server has; under the submit lock
  const uint64_t name_;
  const uint64_t calls_;
  std::vector<uint8_t> devices_;              // of the calls
  std::unique_ptr<CallByCall> call_by_call_;  // null: the server runs programs
};

}  // namespace torch_remote::client
