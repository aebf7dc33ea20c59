#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "client/link/endpoint.h"
#include "client/link/handshake.h"
#include "client/process/errors.h"
#include "transport/connection.h"
#include "wire/handshake.h"

namespace torch_remote::client {

// A session's connection to its server: opened in the background, resumed after a loss, and ended
// once with a first cause. The session overrides what the connection's threads call for messages
// and bulk bytes. Thread-safe.
class Link : private transport::Connection::Handler {
 public:
  struct Ending {
    ErrorClass kind = ErrorClass::kSessionLost;
    std::string cause;
    std::string session;  // its id; empty: there was no session
  };

  const Endpoint& endpoint() const { return endpoint_; }

  bool is_open() const { return open_.load(std::memory_order_acquire); }

  bool is_lost() const { return lost_.load(std::memory_order_acquire); }

  bool is_resuming() const { return resuming_.load(std::memory_order_relaxed); }

  bool was_stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // "connecting", "open", "resuming", "lost", or "stopped" after a stop() that came before a loss.
  std::string state() const;

  // For a link that is or was open.
  const wire::Welcome& welcome() const { return welcome_; }

  // For a link that is open; else null.
  transport::Connection* connection() const { return is_open() ? connection_.get() : nullptr; }

  void flush() {
    if (is_open())
      connection_->flush();
  }

  void flush_soon() {
    if (is_open())
      connection_->flush_soon();
  }

  // Why it is lost.
  Ending ending();

  // The reason of the loss was raised.
  bool was_loss_raised() const { return loss_raised_.load(std::memory_order_relaxed); }

  // Ends it unless it has ended: the first cause is kept.
  void end_with(ErrorClass kind, std::string cause) noexcept;
  // As end_with(), and the server may end the session too. For a link that is open.
  void end_and_close(ErrorClass kind, std::string cause);
  // Flushes for at most `patience`, then closes. Later use of the session raises SessionLost.
  void stop(std::chrono::milliseconds patience, const std::string& reason);
  // After stop(). False: its threads have not ended yet.
  bool release();
  // In a forked child: uses nothing of the parent's any more.
  void abandon() noexcept;

 protected:
  explicit Link(Endpoint endpoint);
  ~Link() override = default;  // links are never destroyed

  // Starts to connect in the background. Once.
  void start();

  // As ending(), to raise it.
  Ending take_ending() {
    loss_raised_.store(true, std::memory_order_relaxed);
    return ending();
  }

  // The messages of this frame are handled.
  void note_applied(uint64_t sequence) { connection_->applied(sequence); }

  // The link is open or has ended: waiting threads check again. Called on any thread.
  virtual void on_change() noexcept = 0;

 private:
  struct Reached {
    std::unique_ptr<transport::Stream> stream;
    wire::Welcome welcome;
  };

  void open();
  void fail(std::exception_ptr cause) noexcept;
  // For stop(): lets a handshake that is under way end, so that the server is told that the session
  // is not wanted. Else the server would keep it for a while.
  void wait_for_opener(std::chrono::milliseconds patience);
  void clean_up();

  // client/link/resume.cpp
  Reached reach();
  wire::Welcome greet(transport::Stream& stream);
  std::unique_ptr<transport::Stream> dial_again(std::chrono::steady_clock::time_point begin,
                                                std::chrono::milliseconds& pause);
  transport::Connection::Options connection_options(const wire::Welcome& welcome);
  std::string try_to_resume(uint64_t received, std::chrono::milliseconds time);

  // transport::Connection::Handler
  void on_broken(std::exception_ptr cause,
                 uint64_t received) override;  // client/link/resume.cpp
  void on_end(std::exception_ptr cause) noexcept override;
  // Why the server has ended, if that is known.
  std::string examine() noexcept;

  // constant after construction
  const Endpoint endpoint_;
  const std::chrono::milliseconds keepalive_;
  const std::chrono::milliseconds patience_;

  // set once, before open_
  wire::Welcome welcome_;
  Ticket ticket_;
  std::unique_ptr<transport::Connection> connection_;

  std::atomic<bool> open_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> stopped_{false};  // by the user, before any loss
  std::atomic<bool> loss_raised_{false};
  std::atomic<bool> resuming_{false};
  std::atomic<bool> opener_ended_{false};
  std::atomic<bool> is_greeting_{false};  // from the first handshake on, unless it is cut

  Mutex mutex_;
  CondVar ended_;  // for threads that dial again, and for wait_for_opener()
  Ending ending_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
