#pragma once

#include <array>
#include <deque>
#include <optional>
#include <thread>

#include <sys/types.h>

#include "base/mutex.h"
#include "transport/ack_policy.h"
#include "transport/buffered_reader.h"
#include "transport/connection.h"
#include "transport/send_ledger.h"

namespace torch_remote::transport {

// Private to transport/connection*.cpp: the state that the three threads share. connection.cpp has
// start and end, connection_reader.cpp also the watchdog.
//
// End: stop() sets stopping_ and shuts the stream down, which wakes all threads. The writer
// finishes first. The reader waits for it, releases what was queued and calls on_end(), the last
// call.
//
// Writing: usually the writer thread. flush() writes on its caller's thread, which saves waking the
// writer, if the writer is waiting and the peer has acknowledged everything: then no buffer is full
// and the write does not block. Meanwhile is_lent_ keeps the writer from writing, parking and
// finishing. Large frames and errors are left to the writer.
//
// Breaking: break_link() sets is_broken_ and shuts the stream down. The writer parks in
// wait_for_work(); then the reader parks too and calls on_broken(). resume() installs a new stream
// and increments link_, which both threads notice.
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

  InFlight in_flight() const noexcept;

  Totals totals() const noexcept {
    return {bytes_sent_.load(std::memory_order_relaxed),
            bytes_received_.load(std::memory_order_relaxed),
            frames_sent_.load(std::memory_order_relaxed)};
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Bulk {
    uint64_t lane;
    std::span<const std::byte> bytes;
    size_t sent;    // so many bytes are already sent
    BulkPart part;  // where the bytes are in their lane
    std::shared_ptr<SentBulk> shared;
  };

  struct Chunk {
    BulkPrefix prefix;
    std::span<const std::byte> bytes;
    bool ends_bulk;
    bool ends_lane;
  };

  struct Messages {
    std::vector<std::byte> payload;
    uint32_t calls = 0;
  };

  struct Work {
    std::optional<uint64_t> resend_after;  // frames after this number are sent again, first of all
    bool ping;
    bool pong;
    bool close;
  };

  // connection.cpp. The first cause is kept; nullptr means a clean end.
  void stop(std::exception_ptr cause) noexcept EXCLUDES(mutex_);
  void publish_totals() noexcept REQUIRES(mutex_);
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
  void wait_while_lent() REQUIRES(mutex_);
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
  FrameHeader stamp(FrameKind kind, size_t length, uint64_t applied) REQUIRES(mutex_);
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
  void note_bytes(size_t count) noexcept;
  bool is_close_sent() EXCLUDES(mutex_);
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
  Clock::time_point last_heard() const noexcept;

  // Constant after construction.
  Handler& handler_;
  const Options options_;
  const std::string peer_;
  const pid_t pid_;

  std::atomic<bool>& flush_pending_;  // see Note [flush_soon may be relaxed]
  std::atomic<Clock::rep> last_heard_;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<uint64_t> bytes_received_ = 0;
  std::atomic<uint64_t> frames_sent_ = 0;
  // Copies of ledger_.totals(), so that in_flight() needs no lock.
  std::atomic<uint64_t> bytes_in_flight_ = 0;
  std::atomic<uint64_t> calls_in_flight_ = 0;
  std::atomic<uint64_t> last_applied_ = 0;
  std::atomic<uint64_t> calls_applied_ = 0;
  std::atomic<uint64_t> calls_received_ = 0;

  // stream_.get() for the child of a fork(), which must not lock. Null after release().
  std::atomic<Stream*> current_stream_;

  std::shared_ptr<Stream> incoming_;      // confined to the reader thread
  std::optional<BufferedReader> reader_;  // confined to the reader thread; of incoming_
  std::shared_ptr<Stream> outgoing_;      // confined to the writer, or to flush() while is_lent_

  Mutex mutex_;
  CondVar work_;     // the writer waits here
  CondVar changed_;  // all other threads wait here: stopping_, writer_done_, running_
  std::shared_ptr<Stream> stream_ GUARDED_BY(mutex_);
  uint64_t link_ GUARDED_BY(mutex_) = 1;  // number of streams so far
  bool is_broken_ GUARDED_BY(mutex_) = false;
  std::exception_ptr broken_by_ GUARDED_BY(mutex_);
  bool reader_parked_ GUARDED_BY(mutex_) = false;
  bool writer_parked_ GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> resend_after_ GUARDED_BY(mutex_);  // for the writer, after a resume
  SendLedger::Released acknowledged_by_resume_ GUARDED_BY(mutex_);  // for the reader
  bool started_ GUARDED_BY(mutex_) = false;
  int running_ GUARDED_BY(mutex_) = 0;  // threads
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::exception_ptr cause_ GUARDED_BY(mutex_);
  bool flush_now_ GUARDED_BY(mutex_) = false;
  bool writer_waits_ GUARDED_BY(mutex_) = false;       // waits for work
  Clock::time_point writer_wakes_ GUARDED_BY(mutex_);  // when a waiting writer wakes by itself
  bool is_lent_ GUARDED_BY(mutex_) = false;            // flush() is writing
  bool writer_wants_back_ GUARDED_BY(mutex_) = false;
  std::optional<Messages> too_large_ GUARDED_BY(mutex_);  // from flush(): the writer sends it first
  std::exception_ptr write_error_ GUARDED_BY(mutex_);     // from flush(): the writer throws it
  bool ping_due_ GUARDED_BY(mutex_) = false;
  bool pong_due_ GUARDED_BY(mutex_) = false;
  bool close_requested_ GUARDED_BY(mutex_) = false;
  bool close_sent_ GUARDED_BY(mutex_) = false;
  bool writer_done_ GUARDED_BY(mutex_) = false;
  std::string close_reason_ GUARDED_BY(mutex_);
  std::string peer_close_reason_ GUARDED_BY(mutex_);
  std::deque<Bulk> bulks_ GUARDED_BY(mutex_);            // only the writer takes from the front
  std::optional<SendLedger> ledger_ GUARDED_BY(mutex_);  // none after release()
  AckPolicy acks_ GUARDED_BY(mutex_);
  uint64_t received_ GUARDED_BY(mutex_) = 0;  // highest sequence; only the reader changes it
  uint64_t applied_ GUARDED_BY(mutex_) = 0;
  uint64_t told_applied_ GUARDED_BY(mutex_) = 0;  // what headers say of it

  std::thread writer_thread_;
  std::thread watchdog_thread_;
  std::thread reader_thread_;
};

}  // namespace torch_remote::transport
