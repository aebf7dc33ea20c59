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
#include <utility>
#include <vector>

#include "transport/frame.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Sends and receives frames over a stream: numbers them, acknowledges them, keeps the stream alive.
// Used by client and server. Thread-safe.
//
// Three threads: the *reader* passes incoming frames to the handler; the *writer* asks the handler
// for messages to send; the *watchdog* ends the connection when the peer is silent. No lock is held
// during calls of the handler or the stream. The first error ends the connection; on_end() gets it.
//
// A *resumable* connection survives its stream: when the stream breaks, on_broken() is called,
// sending waits, and resume() goes on over a new stream. Frames are kept until the peer has
// received them whole; the others are sent again with the same numbers. The receiver drops a frame
// that was cut off. A peer that breaks the protocol still ends the connection.
//
// In the child of a fork() every method does nothing and the destructor leaks; see
// abandon_in_forked_child().
class Connection {
 public:
  // Outlives the connection. An exception from one of the first four methods ends the connection.
  class Handler {
   public:
    virtual ~Handler() = default;
    // Writer thread, or inside flush(), never both at once. Returns the next frame to send, empty
    // for none, and sets `calls` to the number of calls in it. Must take the lock under which
    // messages are queued: Note [flush_soon may be relaxed].
    virtual std::vector<std::byte> take_messages(uint32_t& calls) = 0;

    // The last take_messages() left nothing that was there when it was called.
    virtual bool has_taken_all() { return false; }

    // Reader thread, in the order sent.
    virtual void on_messages(uint64_t sequence, std::vector<std::byte> payload) = 0;
    // Reader thread: the `length` bytes of memory to fill, valid until on_bulk(). Throws
    // ProtocolError to refuse.
    virtual std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) = 0;
    virtual void on_bulk(uint64_t lane, uint64_t offset, uint64_t length, bool last) = 0;

    // Reader thread: in_flight() has changed, or a bulk was acknowledged.
    virtual void on_progress() {}

    // Reader thread, resumable connections only: the stream broke because of `cause`. `received` is
    // the highest sequence received whole, to be told to the peer. May block, and may call
    // resume(); wait_while_broken() returns when the connection is ended meanwhile. An exception
    // ends the connection.
    virtual void on_broken(std::exception_ptr cause, uint64_t /*received*/) {
      std::rethrow_exception(std::move(cause));
    }

    // Called exactly once if start() was called, and last. nullptr after a close by either side.
    virtual void on_end(std::exception_ptr cause) noexcept = 0;
  };

  struct Options {
    std::chrono::milliseconds keepalive{30000};
    // How long flush_soon() collects messages: while the peer has applied everything we sent, and
    // while it has not.
    std::chrono::microseconds flush_delay{40};
    std::chrono::microseconds busy_flush_delay{300};
    FrameLimits limits;
    bool is_resumable = false;
  };

  // Messages frames that were sent and that the peer has not applied yet.
  struct InFlight {
    uint64_t bytes = 0;  // with kFrameCost for each frame
    uint64_t calls = 0;
    uint64_t last_applied = 0;    // sequence of the last messages frame that the peer applied
    uint64_t calls_applied = 0;   // calls in all messages frames that the peer applied
    uint64_t calls_received = 0;  // calls in all messages frames that the peer acknowledged
  };

  // Since start(), over all its streams.
  struct Totals {
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    uint64_t frames_sent = 0;
  };

  Connection(std::unique_ptr<Stream> stream, Handler& handler, Options options);
  ~Connection();  // abort(), then waits for the threads; not from a handler's method
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();  // once

  // Calls take_messages() now, until it returns nothing: on the writer thread, or on this thread
  // where that is quicker and does not block (connection_impl.h).
  void flush() noexcept;

  // The same within flush_delay or busy_flush_delay. Every call does this, so it costs one relaxed
  // load when a flush is already pending.
  void flush_soon() noexcept {
    if (!flush_pending_.load(std::memory_order_relaxed))
      request_flush_soon();
  }

  // Queues bytes to be sent in chunks of 1 MiB, in the order of the calls. Messages are sent before
  // each chunk, so those queued before this call arrive before the bytes. `owner` keeps the bytes
  // alive until the peer has received all of them and our write has returned. Then the connection
  // destroys it and runs on_acked(true), on the reader's or the writer's thread. When the
  // connection ends first, on_acked(false) runs: on one of these threads before on_end(), or here.
  // on_acked() must not throw.
  //
  // A lane may be sent in parts, one call for each, in order: `part` says where the bytes begin in
  // the lane and whether they end it. Each part has its own owner and on_acked().
  struct BulkPart {
    uint64_t offset = 0;
    bool is_last = true;
  };

  void send_bulk(uint64_t lane, std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                 std::function<void(bool)> on_acked, BulkPart part);

  void send_bulk(uint64_t lane, std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                 std::function<void(bool)> on_acked) {
    send_bulk(lane, bytes, std::move(owner), std::move(on_acked), {0, true});
  }

  // Call when the effects of that messages frame are done. The next frame or acknowledgement tells
  // the peer.
  void applied(uint64_t sequence) noexcept;

  InFlight in_flight() const noexcept;

  // Breaks the current stream, unless it is broken, and waits until no thread uses it. Returns the
  // highest sequence received; nothing when the connection has ended or is ending. Not from a
  // handler's method.
  std::optional<uint64_t> suspend(std::exception_ptr cause);
  // Continues over a new stream whose peer has received up to `peer_received`. False: the
  // connection was not broken, or is ending. A wrong number is a ProtocolError and changes nothing.
  bool resume(std::unique_ptr<Stream> stream, uint64_t peer_received);
  // For on_broken(): waits until the connection is resumed or ends. False: the deadline passed.
  bool wait_while_broken(std::chrono::steady_clock::time_point deadline);
  bool is_ending() const;
  // The highest sequence that the peer has acknowledged.
  uint64_t acknowledged() const;

  // Sends what is queued and a close frame, then waits up to `wait` for the peer to hang up; after
  // that the connection has ended. Called from a handler's method, it does not wait.
  void close(std::string_view reason,
             std::chrono::milliseconds wait = std::chrono::milliseconds(2000));
  void abort() noexcept;  // ends it at once; what is queued is lost
  // After the end: frees threads, stream and buffers; methods may still be called. False: it did
  // not end within `wait`. Not from a handler's method.
  bool release(std::chrono::milliseconds wait);

  // The reason in the peer's close frame; empty without one.
  std::string peer_close_reason() const;
  Totals totals() const noexcept;

  // For a pthread_atfork child handler: only closes the child's copies of the descriptors.
  void abandon_in_forked_child() noexcept;

 private:
  class Impl;

  void request_flush_soon() noexcept;

  std::atomic<bool> flush_pending_ = false;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torch_remote::transport
