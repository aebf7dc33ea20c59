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
// once with a first cause. Thread-safe.
class Link : private transport::Connection::Handler {
 public:
  // The session. The first five are transport::Connection::Handler's.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual std::vector<std::byte> take_messages(uint32_t& calls) = 0;
    virtual void on_messages(std::vector<std::byte> payload) = 0;
    virtual std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) = 0;
    virtual void on_bulk(uint64_t lane, uint64_t length, bool last) = 0;
    virtual void on_progress() = 0;
    // The link is open or has ended: waiting threads check again. Called on any thread.
    virtual void on_change() noexcept = 0;
  };

  struct Ending {
    ErrorClass kind = ErrorClass::kSessionLost;
    std::string cause;
    std::string session;  // its id; empty: there was no session
  };

  Link(Endpoint endpoint, Handler& handler);
  ~Link() override = default;  // links are never destroyed

  // Starts to connect in the background. Once.
  void start();

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

  // As ending(), to raise it.
  Ending take_ending() {
    loss_raised_.store(true, std::memory_order_relaxed);
    return ending();
  }

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
  std::vector<std::byte> take_messages(uint32_t& calls) override {
    return handler_.take_messages(calls);
  }

  void on_messages(uint64_t sequence, std::vector<std::byte> payload) override {
    handler_.on_messages(std::move(payload));
    connection_->applied(sequence);
  }

  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override {
    return handler_.bulk_target(lane, offset, length);
  }

  void on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t length, bool last) override {
    handler_.on_bulk(lane, length, last);
  }

  void on_progress() override { handler_.on_progress(); }

  void on_broken(std::exception_ptr cause,
                 uint64_t received) override;  // client/link/resume.cpp
  void on_end(std::exception_ptr cause) noexcept override;
  // The cause, after why the process of the server or of its connection has ended, if known.
  std::exception_ptr explained_end(std::exception_ptr cause) noexcept;

  // constant after construction
  Handler& handler_;
  const Endpoint endpoint_;
  const std::chrono::milliseconds keepalive_;
  const std::chrono::milliseconds patience_;
  const std::chrono::seconds answer_time_;

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
