// The writer thread of a connection: when it writes. connection_frames.cpp has what it writes.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/platform.h"
#include "transport/connection_impl.h"

namespace torch_remote::transport {
namespace {

// flush() writes frames up to this size on its caller's thread. Every socket buffer is larger.
constexpr size_t kSmallFrame = size_t{8} << 10;
// How long a failed write waits for the reader to find the reason.
constexpr std::chrono::milliseconds kReaderGrace{1000};

}  // namespace

// Note [flush_soon may be relaxed]
//
// A producer queues a message under the handler's lock, then calls flush_soon(), which returns
// early if flush_pending_ is true. The writer first stores false, then calls take_messages(), which
// takes the same lock. If the producer had the lock first, the writer finds the message. If the
// writer had it first, its store of false happened before the producer's load, so the producer
// reads false and wakes the writer. The lock orders both, so the load may be relaxed.

void Connection::Impl::flush() noexcept {
  std::shared_ptr<Stream> left;  // destroyed after the lock is released
  {
    MutexLock lock(mutex_);
    if (!may_borrow()) {
      due_.flush = true;
      work_.notify_one();
      return;
    }
    writer_.lend();
    flush_pending_.store(false, std::memory_order_relaxed);
    take_outgoing(left);
  }
  LeftByFlush left_over;
  try {
    left_over.too_large = write_while_small();
  } catch (...) {
    left_over.error = std::current_exception();
  }
  MutexLock lock(mutex_);
  const bool is_recalled = writer_.give_back();
  due_.flush = due_.flush || left_over.too_large || left_over.error;
  left_by_flush_ = std::move(left_over);
  if (due_.flush || is_recalled)
    work_.notify_one();
}

bool Connection::Impl::may_borrow() const {
  return writer_.can_lend() && state_.is_open() && !due_.flush && !due_.resend_after &&
         !close_reason_ && bulks_.empty() && ledger_->is_all_acknowledged();
}

// Writes until nothing is left. Returns a frame that is too large for this thread.
std::optional<Connection::Impl::Messages> Connection::Impl::write_while_small() {
  for (;;) {
    Messages messages = take_messages();
    if (messages.payload.empty())
      return std::nullopt;
    if (messages.payload.size() > kSmallFrame)
      return messages;
    send(std::move(messages));
  }
}

void Connection::Impl::take_outgoing(std::shared_ptr<Stream>& left) {
  if (outgoing_ != stream_)
    left = std::exchange(outgoing_, stream_);
}

void Connection::Impl::wake_writer() noexcept {
  MutexLock lock(mutex_);
  work_.notify_one();
}

void Connection::Impl::wake_writer_if_ack_due_changed(
    std::optional<Clock::time_point> due_before) noexcept {
  const std::optional<Clock::time_point> due = received_.ack_due();
  // A writer that wakes before `due` checks by itself.
  if (due != due_before && !(writer_.is_waiting() && due && writer_wakes_ <= *due))
    work_.notify_one();
}

void Connection::Impl::send_bulk(uint64_t lane, std::span<const std::byte> bytes,
                                 std::shared_ptr<const void> owner,
                                 std::function<void(bool)> on_acked, BulkPart part) {
  // Destroyed after the lock is released.
  auto shared = std::make_shared<SentBulk>(std::move(owner), std::move(on_acked));
  MutexLock lock(mutex_);
  if (state_.is_stopping())
    return;
  bulks_.push({lane, part.offset}, bytes, part.is_last, std::move(shared));
  work_.notify_one();
}

void Connection::Impl::applied(uint64_t sequence) noexcept {
  bool was_received = false;
  {
    MutexLock lock(mutex_);
    const std::optional<Clock::time_point> due_before = received_.ack_due();
    was_received = received_.note_applied(sequence, Clock::now());
    wake_writer_if_ack_due_changed(due_before);
  }
  if (!was_received)
    stop(std::make_exception_ptr(InternalError("a frame was applied before it was received")));
}

void Connection::Impl::run_writer() noexcept {
  begin_worker_thread("tr-writer");
  want_precise_waits();
  try {
    while (take_turn()) {
    }
  } catch (...) {
    stop(std::current_exception());
  }
  MutexLock lock(mutex_);
  writer_.finish();
  changed_.notify_all();
}

// False: nothing will be written any more.
bool Connection::Impl::take_turn() {
  try {
    const std::optional<Work> work = wait_for_work();
    return work && perform(*work);
  } catch (const ConnectionError&) {
    let_reader_end_first(std::current_exception());
    return true;
  }
}

// A peer that sends a close frame and hangs up makes our write fail before we have read that frame.
// So the reader gets time to read it and end the connection with its reason.
void Connection::Impl::let_reader_end_first(const std::exception_ptr& error) {
  const Clock::time_point deadline = Clock::now() + kReaderGrace;
  {
    MutexLock lock(mutex_);
    while (!state_.is_stopping() && !state_.is_broken() && Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
  }
  break_link(error);
}

// Nothing: the connection is stopping.
std::optional<Connection::Impl::Work> Connection::Impl::wait_for_work() {
  std::shared_ptr<Stream> left;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  std::optional<Clock::time_point> flush_at;
  for (;;) {
    park_while_broken();
    if (state_.is_stopping())
      return std::nullopt;
    if (left_by_flush_.error)
      std::rethrow_exception(std::exchange(left_by_flush_.error, nullptr));
    const Clock::time_point now = Clock::now();
    if (!flush_at && flush_pending_.load(std::memory_order_relaxed)) {
      const bool is_busy = ledger_->totals().bytes != 0;
      flush_at = now + (is_busy ? options_.busy_flush_delay : options_.flush_delay);
    }
    if (is_urgent(now) || (flush_at && *flush_at <= now))
      break;
    wait_for_change(flush_at);
  }
  flush_pending_.store(false, std::memory_order_relaxed);
  take_outgoing(left);
  Work work = std::exchange(due_, {});
  work.close = close_reason_.has_value();
  return work;
}

void Connection::Impl::park_while_broken() {
  if (!state_.is_broken())
    return;
  left_by_flush_.error = nullptr;  // belongs to the broken stream
  writer_.park();
  changed_.notify_all();
  while (state_.is_broken())
    work_.wait(mutex_);
  writer_.unpark();
}

bool Connection::Impl::is_urgent(Clock::time_point now) const {
  const std::optional<Clock::time_point> ack_due = received_.ack_due();
  return due_.flush || due_.resend_after || due_.ping || due_.pong || close_reason_ ||
         !bulks_.empty() || (ack_due && *ack_due <= now);
}

void Connection::Impl::wait_for_change(std::optional<Clock::time_point> flush_at) {
  std::optional<Clock::time_point> until = received_.ack_due();
  if (flush_at && (!until || *flush_at < *until))
    until = flush_at;
  writer_.wait();
  writer_wakes_ = until.value_or(Clock::time_point::max());
  if (until)
    work_.wait_until(mutex_, *until);
  else
    work_.wait(mutex_);
  writer_.wake();
  while (writer_.is_lent())
    work_.wait(mutex_);
}

// False: the close frame is sent, and nothing may follow it. If the stream has broken, it is sent
// over the next one.
bool Connection::Impl::perform(const Work& work) {
  if (work.resend_after)
    send_again(*work.resend_after);
  send_queued();
  if (work.pong)
    send_control(FrameKind::kPong);
  if (work.ping)
    send_control(FrameKind::kPing);
  if (!work.close) {
    send_due_ack();
    return true;
  }
  std::string reason;
  {
    MutexLock lock(mutex_);
    if (!state_.begin_close())
      return true;
    reason = *close_reason_;
  }
  send_control(FrameKind::kClose, reason);
  return false;
}

}  // namespace torch_remote::transport
