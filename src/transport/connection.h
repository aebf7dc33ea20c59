#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/frame.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Frames over a stream: numbered, acknowledged, kept alive. Both client and server use it.
// Thread-safe.
//
// Three threads: the *reader* calls the handler with what comes in; the *writer* asks the handler
// for what is to go out; the *watchdog* wants a sign of life from the peer. No lock is held while
// the handler or the stream is called. The first error ends the connection and is the one that
// on_end() gets.
//
// A *resumable* connection outlives its stream: when that breaks (not: when the peer breaks the
// protocol), on_broken() is called, everything waits, and resume() goes on over another stream.
// Frames are kept until the peer has wholly received them; those it has not are sent again, in the
// order and with the numbers they had. A frame that was cut is forgotten by its receiver.
//
// In the child of a fork() every method does nothing and the destructor leaks; see
// abandon_in_forked_child().
class Connection {
 public:
  // Outlives the connection. An exception from the first four methods ends the connection with it.
  class Handler {
   public:
    virtual ~Handler() = default;
    // Writer thread, or within flush(), never both at a time: what to send next, as one frame;
    // empty when there is nothing. `calls` is how many calls are in it. This and what it takes from
    // must be ordered by a lock: Note [flush_soon may be relaxed].
    virtual std::vector<std::byte> take_messages(uint32_t& calls) = 0;
    // Reader thread, in the order sent.
    virtual void on_messages(uint64_t sequence, std::vector<std::byte> payload) = 0;
    // Reader thread: `length` bytes where these go, valid until on_bulk(). Throws ProtocolError to
    // refuse.
    virtual std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) = 0;
    virtual void on_bulk(uint64_t lane, uint64_t offset, uint64_t length, bool last) = 0;

    // Reader thread: in_flight() has changed, or a bulk was acknowledged.
    virtual void on_progress() {}

    // Reader thread; resumable connections only: the stream is gone, and this is why. `received` is
    // the highest sequence that came wholly, for the peer to know. Takes its time, and may call
    // resume() itself; a connection that is being ended is noticed by wait_while_broken(). An
    // exception ends the connection with it.
    virtual void on_broken(std::exception_ptr cause, uint64_t /*received*/) {
      std::rethrow_exception(std::move(cause));
    }

    // Exactly once if start() was called; no other method is called any more. nullptr after a close
    // by either side.
    virtual void on_end(std::exception_ptr cause) noexcept = 0;
  };

  struct Options {
    std::chrono::milliseconds keepalive{30000};
    // How long flush_soon() lets messages gather: while the peer has nothing of us to do, and while
    // it has.
    std::chrono::microseconds flush_delay{40};
    std::chrono::microseconds busy_flush_delay{300};
    FrameLimits limits;
    bool is_resumable = false;
  };

  // Messages frames that were sent and that the peer has not applied yet.
  struct InFlight {
    uint64_t bytes = 0;
    uint64_t calls = 0;
    uint64_t last_applied = 0;    // sequence of the last messages frame that the peer applied
    uint64_t calls_applied = 0;   // calls in all messages frames that the peer applied
    uint64_t calls_received = 0;  // the same for those that it acknowledged
  };

  Connection(std::unique_ptr<Stream> stream, Handler& handler, Options options);
  ~Connection();  // abort(), then waits for the threads; not from a handler's method
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();  // once

  // Has take_messages() called now, until it returns nothing: by the writer, or here, when that
  // would have to be woken and the write does not block (connection_impl.h).
  void flush() noexcept;

  // The same within flush_delay or busy_flush_delay. On the path of every call: one relaxed load
  // when it is already on its way.
  void flush_soon() noexcept {
    if (!flush_pending_.load(std::memory_order_relaxed)) {
      request_flush_soon();
    }
  }

  // Queues bytes on a lane of their own. They go out in chunks of 1 MiB, lane after lane; messages
  // go first before each, so messages that take_messages() could return before this call precede
  // the chunks. `owner` keeps the bytes alive until the peer has received all of them; then
  // on_acked(true) runs on the reader thread. on_acked(false) when the connection ends first (on
  // the reader thread before on_end(), or here when it has ended already).
  void send_bulk(uint64_t lane, std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                 std::function<void(bool)> on_acked);

  // The effects of that messages frame are done: the peer learns it with the next frame or
  // acknowledgement.
  void applied(uint64_t sequence) noexcept;

  InFlight in_flight() const noexcept;

  // Has the present stream count as broken, if it does not already, and waits until the threads have
  // left it. The highest sequence received then; nothing when the connection has ended or ends. Not
  // from a handler's method.
  std::optional<uint64_t> suspend(std::exception_ptr cause);
  // Goes on over another stream, whose peer has received so much. False: the connection was not
  // broken, or it ends. Throws ProtocolError, and changes nothing, when that cannot be.
  bool resume(std::unique_ptr<Stream> stream, uint64_t peer_received);
  // From on_broken(): until the connection is resumed or is being ended. False: the deadline has
  // passed first.
  bool wait_while_broken(std::chrono::steady_clock::time_point deadline);
  bool is_ending() const;
  // The highest sequence that the peer has acknowledged.
  uint64_t acknowledged() const;

  // Sends what is queued and a close frame, and waits until the peer has hung up, for `wait` at
  // most; then the connection has ended. From a handler's method it only asks for this and does not
  // wait.
  void close(std::string_view reason,
             std::chrono::milliseconds wait = std::chrono::milliseconds(2000));
  void abort() noexcept;  // ends it at once; what is queued is lost
  // Once it has ended: gives back threads, stream and buffers; its methods may still be called. False: it has not
  // within `wait`. Not from a handler's method.
  bool release(std::chrono::milliseconds wait);

  // The reason in the peer's close frame; empty when there was none.
  std::string peer_close_reason() const;
  std::string peer() const;
  uint64_t bytes_sent() const noexcept;
  uint64_t bytes_received() const noexcept;
  uint64_t frames_sent() const noexcept;

  // For a pthread_atfork child handler: closes the child's copy of the descriptors and nothing
  // else.
  void abandon_in_forked_child() noexcept;

 private:
  class Impl;

  void request_flush_soon() noexcept;

  std::atomic<bool> flush_pending_ = false;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torch_remote::transport
