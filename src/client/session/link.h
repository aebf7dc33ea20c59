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
#include "client/session/endpoint.h"
#include "client/session/errors.h"
#include "client/session/handshake.h"
#include "transport/connection.h"
#include "wire/handshake.h"

namespace torch_remote::client {

// A session's connection to its server: opened in the background, resumed after a loss, and ended
// once with a first cause. Thread-safe.
class Link : private transport::Connection::Handler {
 public:
  // The user of a link. The connection's threads call everything but on_change().
  class Traffic {
   public:
    virtual ~Traffic() = default;
    virtual std::vector<std::byte> take_messages(uint32_t& calls) = 0;
    virtual void on_messages(std::span<const std::byte> payload) = 0;
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

  Link(Endpoint endpoint, Traffic& traffic);

  // Starts to connect in the background.
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
  // Ends it unless it has ended: the first cause is kept.
  void end_with(ErrorClass kind, std::string cause) noexcept;
  // Flushes for at most `patience`, then closes.
  void stop(std::chrono::milliseconds patience, const std::string& reason);
  // After stop(). False: its threads have not ended yet.
  bool release();
  // In a forked child: uses nothing of the parent's any more.
  void abandon() noexcept;

 private:
  void open();
  void fail(std::exception_ptr cause) noexcept;
  void clean_up();

  // client/session/resume.cpp
  struct Reached {
    std::unique_ptr<transport::Stream> stream;
    wire::Welcome welcome;
  };

  Reached reach();
  std::unique_ptr<transport::Stream> dial_again(std::chrono::steady_clock::time_point begin,
                                                std::chrono::milliseconds& pause);
  transport::Connection::Options connection_options(const wire::Welcome& welcome);
  std::string try_to_resume(uint64_t received, std::chrono::milliseconds time);

  // transport::Connection::Handler
  std::vector<std::byte> take_messages(uint32_t& calls) override;
  void on_messages(uint64_t sequence, std::vector<std::byte> payload) override;
  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override;
  void on_bulk(uint64_t lane, uint64_t offset, uint64_t length, bool last) override;
  void on_progress() override;
  void on_broken(std::exception_ptr cause,
                 uint64_t received) override;  // client/session/resume.cpp
  void on_end(std::exception_ptr cause) noexcept override;

  // constant after construction
  const Endpoint endpoint_;
  Traffic& traffic_;
  const std::chrono::milliseconds keepalive_;
  const std::chrono::milliseconds patience_;

  // set once, before open_
  wire::Welcome welcome_;
  Ticket ticket_;
  std::unique_ptr<transport::Connection> connection_;

  std::atomic<bool> open_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> stopped_{false};  // by the user, before any loss
  std::atomic<bool> resuming_{false};
  std::atomic<bool> opener_ended_{false};

  Mutex mutex_;
  CondVar ended_;  // for threads that dial again
  Ending ending_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
