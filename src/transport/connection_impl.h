#pragma once

#include <optional>
#include <string>
#include <thread>

#include <sys/types.h>

#include "base/mutex.h"
#include "transport/buffered_reader.h"
#include "transport/bulk_queue.h"
#include "transport/connection.h"
#include "transport/connection_figures.h"
#include "transport/connection_state.h"
#include "transport/receive_ledger.h"
#include "transport/send_ledger.h"

namespace torch_remote::transport {

// Private to transport/connection*.cpp: the state that the three threads share. connection.cpp has
// start and end, connection_reader.cpp also the watchdog. Its states have names, and transitions
// that are functions: the tables in connection_state.h. Three protocols use them:
//
//   end    stop()             state → kStopping; shuts the stream down, which wakes all threads
//          writer             → kDone
//          reader             waits for that, frees what was queued, calls on_end(), the last call
//
//   lend   flush()            if the peer has acknowledged all, so that no buffer is full and the
//                             write does not block: writer kWaiting → kLent. It writes, which
//                             saves waking the writer, but leaves large frames and errors to it
//          writer             if it wakes meanwhile: kLent → kRecalled, and waits
//          flush()            gives it back: → kWaiting, or kWorking
//
//   break  break_link()       state → kBroken; shuts the stream down
//          writer             → kParked
//          reader             waits for that; state → kParked; calls on_broken()
//          resume()           installs a new stream; state → kOpen
//          writer, reader     take the new stream; the writer sends again what may be lost
class Connection::Impl {
 public:
  Impl(std::unique_ptr<Stream> stream, Handler& handler, const Options& options,
       std::atomic<bool>& flush_pending);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool is_in_forked_child() const noexcept;

  void abandon_in_forked_child() noexcept;

  void start();
  void flush() noexcept EXCLUDES(mutex_);
  void wake_writer() noexcept EXCLUDES(mutex_);
  void send_bulk(uint64_t lane, std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                 std::function<void(bool)> on_acked, BulkPart part) EXCLUDES(mutex_);
  void applied(uint64_t sequence) noexcept EXCLUDES(mutex_);
  void close(std::string_view reason, std::chrono::milliseconds wait) EXCLUDES(mutex_);
  void abort() noexcept;
  bool release(std::chrono::milliseconds wait) EXCLUDES(mutex_);
  std::string peer_close_reason() EXCLUDES(mutex_);
  std::optional<uint64_t> suspend(std::exception_ptr cause) EXCLUDES(mutex_);
  bool resume(std::unique_ptr<Stream> stream, uint64_t peer_received) EXCLUDES(mutex_);
  bool wait_while_broken(std::chrono::steady_clock::time_point deadline) EXCLUDES(mutex_);
  bool is_ending() EXCLUDES(mutex_);
  uint64_t acknowledged() EXCLUDES(mutex_);

  const ConnectionFigures& figures() const noexcept { return figures_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Messages {
    std::vector<std::byte> payload;
    uint32_t calls = 0;
  };

  // What the writer is to send besides messages and bulks.
  struct Work {
    std::optional<uint64_t> resend_after;  // frames after this number are sent again, first of all
    bool flush = false;                    // messages are sent now
    bool ping = false;
    bool pong = false;
    bool close = false;
  };

  // What a flush() on another thread leaves to the writer.
  struct LeftByFlush {
    std::optional<Messages> too_large;  // is sent first
    std::exception_ptr error;           // of a write: the writer throws it
  };

  // connection.cpp. The first cause is kept; nullptr means a clean end.
  void stop(std::exception_ptr cause) noexcept EXCLUDES(mutex_);
  std::thread run(void (Impl::*loop)() noexcept) EXCLUDES(mutex_);
  void join_threads();

  void wake_writer_if_ack_due_changed(std::optional<Clock::time_point> due_before) noexcept
      REQUIRES(mutex_);

  // connection_writer.cpp; on the thread that calls flush().
  bool may_borrow() const REQUIRES(mutex_);
  std::optional<Messages> write_while_small();
  void take_outgoing(std::shared_ptr<Stream>& left) REQUIRES(mutex_);

  // connection_writer.cpp and connection_frames.cpp; on the writer thread.
  void run_writer() noexcept;
  bool take_turn();
  std::optional<Work> wait_for_work() EXCLUDES(mutex_);
  void park_while_broken() REQUIRES(mutex_);
  bool is_urgent(Clock::time_point now) const REQUIRES(mutex_);
  void wait_for_change(std::optional<Clock::time_point> flush_at) REQUIRES(mutex_);
  bool perform(const Work& work);
  void send_again(uint64_t resend_after) EXCLUDES(mutex_);
  void send_queued();
  void send_messages();
  Messages take_messages() EXCLUDES(mutex_);
  void send(Messages messages) EXCLUDES(mutex_);
  std::optional<Chunk> next_chunk() EXCLUDES(mutex_);
  void send_chunk(const Chunk& chunk) EXCLUDES(mutex_);
  void send_control(FrameKind kind, std::string_view reason = {}) EXCLUDES(mutex_);
  void send_due_ack() EXCLUDES(mutex_);
  FrameHeader make_header(FrameKind kind, size_t length) REQUIRES(mutex_);
  void write_frame(const FrameHeader& header, std::span<const std::byte> prefix,
                   std::span<const std::byte> payload);
  void let_reader_end_first(const std::exception_ptr& error) EXCLUDES(mutex_);

  // connection_reader.cpp; on the reader thread.
  void run_reader() noexcept;
  bool read_until_broken();
  bool read_frame();
  bool at_end_of_stream() EXCLUDES(mutex_);
  void take_counters(const FrameHeader& header) EXCLUDES(mutex_);
  void read_messages(const FrameHeader& header);
  void read_bulk(const FrameHeader& header);
  void read_close(const FrameHeader& header) EXCLUDES(mutex_);
  void note_received(const FrameHeader& header) EXCLUDES(mutex_);
  bool is_closing() EXCLUDES(mutex_);
  void wait_for_writer() EXCLUDES(mutex_);
  void release_bulks() EXCLUDES(mutex_);
  static void free_acknowledged(SendLedger::Released released);

  // connection_resume.cpp; break_link() on any thread, wait_for_resume() on the reader's.
  void break_link(std::exception_ptr cause) noexcept EXCLUDES(mutex_);
  bool wait_for_resume(std::exception_ptr cause) EXCLUDES(mutex_);
  void wait_for_writer_to_park() REQUIRES(mutex_);
  void take_stream() EXCLUDES(mutex_);

  // connection_reader.cpp; on the watchdog thread.
  void run_watchdog() noexcept;
  bool watch_until_silent() EXCLUDES(mutex_);

  // Constant after construction.
  Handler& handler_;
  const Options options_;
  const std::string peer_;
  const pid_t pid_;

  std::atomic<bool>& flush_pending_;  // see Note [flush_soon may be relaxed]
  ConnectionFigures figures_;

  // stream_.get() for the child of a fork(), which must not lock. Null after release().
  std::atomic<Stream*> current_stream_;

  std::shared_ptr<Stream> incoming_;      // confined to the reader thread
  std::optional<BufferedReader> reader_;  // confined to the reader thread; of incoming_
  std::shared_ptr<Stream> outgoing_;      // confined to who may write: WriterState

  Mutex mutex_;
  CondVar work_;     // the writer waits here
  CondVar changed_;  // all other threads wait here: state_, writer_, running_
  ConnectionState state_ GUARDED_BY(mutex_);
  WriterState writer_ GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ GUARDED_BY(mutex_);
  std::exception_ptr broken_by_ GUARDED_BY(mutex_);  // while state_ is broken
  std::exception_ptr cause_ GUARDED_BY(mutex_);      // of the end
  int running_ GUARDED_BY(mutex_) = 0;               // threads

  Work due_ GUARDED_BY(mutex_);
  LeftByFlush left_by_flush_ GUARDED_BY(mutex_);
  Clock::time_point writer_wakes_ GUARDED_BY(mutex_);  // when a waiting writer wakes by itself
  std::optional<std::string> close_reason_ GUARDED_BY(mutex_);  // once close() was called
  std::string peer_close_reason_ GUARDED_BY(mutex_);

  BulkQueue bulks_ GUARDED_BY(mutex_);                              // only the writer takes chunks
  std::optional<SendLedger> ledger_ GUARDED_BY(mutex_);             // none after release()
  SendLedger::Released acknowledged_by_resume_ GUARDED_BY(mutex_);  // for the reader to free
  ReceiveLedger received_ GUARDED_BY(mutex_);                       // only the reader receives

  std::thread writer_thread_;
  std::thread watchdog_thread_;
  std::thread reader_thread_;
};

}  // namespace torch_remote::transport
