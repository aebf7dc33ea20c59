#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "server/bytes/reply.h"
#include "wire/messages.h"

namespace torch_remote::server {

// The server refuses what a message asks. The error is the answer, or replaces the call's results;
// the session goes on.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device is unusable in this process (a kernel's assert, a memory fault). Ends the session.
class DeviceLost : public std::runtime_error {
 public:
  explicit DeviceLost(wire::Error what)
      : std::runtime_error(what.message), error(std::move(what)) {}

  wire::Error error;
};

// Describes an exception to the client: its kind and its text without C++ frames. Throws
// ProtocolError and ConnectionError again, because they end the session, and DeviceLost if the
// device is lost.
wire::Error describe_failure(std::exception_ptr cause, const std::string& operation);

// The same for a thread other than the executor, which cannot end the session: throws nothing.
wire::Error describe_any_failure(std::exception_ptr cause, const std::string& operation);

// A failed call, upload or resize; shared by all storages that are missing because of it.
using Cause = std::shared_ptr<const wire::Error>;

// Which message made something, and which thread of the client's program sent it.
struct Origin {
  uint64_t thread = 0;
  uint64_t call = 0;  // its number, or that of the next numbered message
};

// Of all failures that something still needs: beyond it the session ends.
constexpr uint64_t kMaxFailureBytes = 32 << 20;

// The threads of the client's program that a failed call has stopped: Note [Fail-stop] in
// wire/messages.h. Confined to the executor thread.
class StoppedThreads {
 public:
  // `counted`: bytes that count towards serve --max-memory, to which those of failures are added.
  explicit StoppedThreads(Replies& replies, std::shared_ptr<std::atomic<uint64_t>> counted =
                                                std::make_shared<std::atomic<uint64_t>>(0))
      : replies_(replies), counted_(std::move(counted)) {}

  // THREAD: the messages that follow are from this thread.
  void set_current(uint64_t thread);
  // GO_ON. Does nothing if the thread is not stopped.
  void go_on(uint64_t thread);

  // Why the current thread is stopped; null if it is not.
  const Cause& cause() const { return cause_; }

  uint64_t current() const { return current_; }

  // The current thread is stopped, and has made it after the call that failed.
  bool is_made_since(Origin made) const {
    return cause_ != nullptr && made.thread == current_ && made.call > cause_->since;
  }

  // Stops the current thread at the call `since`, because of `failure`, and tells the client.
  // Gives the failure as the thread's cause.
  Cause stop(wire::Error failure, uint64_t since);

  // The failure, for those who need it later. Its memory is counted as long as somebody has it.
  // Throws ProtocolError beyond kMaxFailureBytes.
  Cause keep(wire::Error failure);

 private:
  Replies& replies_;
  const std::shared_ptr<std::atomic<uint64_t>> counted_;
  const std::shared_ptr<std::atomic<uint64_t>> kept_ =
      std::make_shared<std::atomic<uint64_t>>(0);  // bytes of all failures
  uint64_t current_ = 0;
  Cause cause_;                                            // of the current thread
  std::unordered_map<uint64_t, Cause, NameHash> stopped_;  // by thread
};

}  // namespace torch_remote::server
