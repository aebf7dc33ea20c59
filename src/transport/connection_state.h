#pragma once

#include <string_view>

#include "base/error.h"

// The two state machines of a connection. Each function that changes a state is a transition with a
// name; a transition from another state than the tables say is a bug of ours, and throws.
namespace torch_remote::transport {

// Whether a connection has a stream that works. Externally synchronised.
//
//   state      what holds                                       leaves it
//   kOpen      frames come and go                               break_stream → kBroken,
//                                                               begin_close → kClosing
//   kBroken    the stream is shut down; the connection's        park → kParked
//              threads stop using it, the writer first
//   kParked    no thread uses the stream; on_broken() is        resume → kOpen
//              called, and then the reader waits
//   kClosing   our close frame goes out, the last one; the      -
//              peer is to hang up
//   kStopping  the stream is shut down, the cause is known;     -
//              threads end, and on_end() is called
//
// stop() leads from every state to kStopping. Only a resumable connection can be kBroken.
class ConnectionState {
 public:
  explicit ConnectionState(bool is_resumable) : is_resumable_(is_resumable) {}

  bool is_open() const noexcept { return state_ == State::kOpen; }

  bool is_broken() const noexcept { return state_ == State::kBroken || is_parked(); }

  bool is_parked() const noexcept { return state_ == State::kParked; }

  bool is_closing() const noexcept { return state_ == State::kClosing; }

  bool is_stopping() const noexcept { return state_ == State::kStopping; }

  // A broken stream does not end the connection.
  bool survives_its_stream() const noexcept { return is_resumable_ && (is_open() || is_broken()); }

  // False: it was broken already.
  bool break_stream() {
    check_internal(survives_its_stream(), "a stream breaks before the connection ends");
    if (is_broken())
      return false;
    state_ = State::kBroken;
    return true;
  }

  // By the reader, when the writer has parked.
  void park() {
    check_internal(state_ == State::kBroken, "the reader parks when the stream has broken");
    state_ = State::kParked;
  }

  void resume() {
    check_internal(is_parked(), "a connection resumes when no thread uses the broken stream");
    state_ = State::kOpen;
  }

  // By the writer, before it writes the close frame, because the peer may hang up at once. False:
  // the stream broke or the connection is stopping, so that nothing can be written now.
  bool begin_close() noexcept {
    if (!is_open())
      return false;
    state_ = State::kClosing;
    return true;
  }

  // False: it was stopping already, for an earlier cause.
  bool stop() noexcept {
    if (is_stopping())
      return false;
    state_ = State::kStopping;
    return true;
  }

 private:
  enum class State { kOpen, kBroken, kParked, kClosing, kStopping };

  const bool is_resumable_;
  State state_ = State::kOpen;
};

// What the writer thread does, and so who may write to the stream. Externally synchronised.
//
//   state       who may write        what the writer does    leaves it
//   kUnstarted  nobody               does not run            start → kWorking
//   kWorking    the writer           writes, looks for work  wait → kWaiting, park → kParked,
//                                                            finish → kDone
//   kWaiting    nobody               waits for work          wake → kWorking, lend → kLent
//   kLent       a thread in flush()  waits for work          wake → kRecalled,
//                                                            give_back → kWaiting
//   kRecalled   a thread in flush()  waits until it may      give_back → kWorking
//                                    write
//   kParked     nobody               waits for another       unpark → kWorking
//                                    stream, or the end
//   kDone       nobody               has ended               -
class WriterState {
 public:
  bool is_started() const noexcept { return state_ != State::kUnstarted; }

  // For work, so that the writer thread looks for some when it is notified.
  bool is_waiting() const noexcept { return can_lend() || state_ == State::kLent; }

  bool can_lend() const noexcept { return state_ == State::kWaiting; }

  bool is_lent() const noexcept { return state_ == State::kLent || state_ == State::kRecalled; }

  bool is_parked() const noexcept { return state_ == State::kParked; }

  bool is_done() const noexcept { return state_ == State::kDone; }

  void start() { change(State::kUnstarted, State::kWorking, "a connection is started once"); }

  // By the writer thread: these five.
  void wait() { change(State::kWorking, State::kWaiting, "the writer waits after its work"); }

  void wake() {
    check_internal(is_waiting(), "the writer wakes after it has waited");
    state_ = can_lend() ? State::kWorking : State::kRecalled;
  }

  void park() { change(State::kWorking, State::kParked, "the writer parks between two frames"); }

  void unpark() { change(State::kParked, State::kWorking, "the writer parks before it goes on"); }

  void finish() { change(State::kWorking, State::kDone, "the writer ends once"); }

  // By the thread that calls flush(): these two.
  void lend() { change(State::kWaiting, State::kLent, "only a writer that waits is lent"); }

  // True: the writer thread waits for it.
  bool give_back() {
    check_internal(is_lent(), "what is given back was lent");
    const bool is_recalled = state_ == State::kRecalled;
    state_ = is_recalled ? State::kWorking : State::kWaiting;
    return is_recalled;
  }

 private:
  enum class State { kUnstarted, kWorking, kWaiting, kLent, kRecalled, kParked, kDone };

  void change(State from, State to, std::string_view claim) {
    check_internal(state_ == from, claim);
    state_ = to;
  }

  State state_ = State::kUnstarted;
};

}  // namespace torch_remote::transport
