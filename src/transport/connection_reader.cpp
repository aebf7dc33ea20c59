// The reader and the watchdog thread of a connection.
#include <string>
#include <utility>

#include "base/error.h"
#include "base/platform.h"
#include "transport/connection_impl.h"
#include "transport/keepalive.h"

namespace torch_remote::transport {
namespace {

std::string in_words(std::chrono::milliseconds duration) {
  if (duration.count() % 1000 == 0)
    return std::to_string(duration.count() / 1000) + " s";
  return std::to_string(duration.count()) + " ms";
}

}  // namespace

void Connection::Impl::run_reader() noexcept {
  begin_worker_thread("tr-reader");
  try {
    do {
      take_stream();
    } while (read_until_broken());
    stop(nullptr);
  } catch (...) {
    stop(std::current_exception());
  }
  wait_for_writer();
  release_bulks();
  std::exception_ptr cause;
  {
    MutexLock lock(mutex_);
    cause = cause_;
  }
  handler_.on_end(std::move(cause));
}

// True: the stream broke and there is a new one. False: the connection ended, and stop() knows why.
bool Connection::Impl::read_until_broken() {
  std::exception_ptr cause;
  try {
    while (read_frame()) {
    }
    return false;
  } catch (const ConnectionError&) {
    cause = std::current_exception();
  }
  return !is_closing() && wait_for_resume(std::move(cause));
}

// Returns what read_until_broken() does when there is nothing more to read.
bool Connection::Impl::read_frame() {
  std::array<std::byte, kHeaderSize> bytes;
  if (!reader_->read_or_end(bytes))
    return at_end_of_stream();
  const FrameHeader header = decode_header(bytes, options_.limits);
  take_counters(header);
  switch (header.kind) {
    case FrameKind::kMessages:
      read_messages(header);
      return true;
    case FrameKind::kBulk:
      read_bulk(header);
      return true;
    case FrameKind::kPing: {
      MutexLock lock(mutex_);
      due_.pong = true;
      work_.notify_one();
      return true;
    }
    case FrameKind::kAck:
    case FrameKind::kPong:
      return true;
    case FrameKind::kClose:
      read_close(header);
      return false;
  }
  return false;
}

bool Connection::Impl::at_end_of_stream() {
  MutexLock lock(mutex_);
  if (!state_.is_stopping() && !state_.is_closing())
    throw ConnectionError(peer_ + " closed the connection without saying why");
  return false;
}

void Connection::Impl::take_counters(const FrameHeader& header) {
  SendLedger::Released released;
  bool moved = false;
  {
    MutexLock lock(mutex_);
    received_.check_next(header);
    moved = ledger_->advance(header.acknowledged, header.applied, released);
    figures_.publish(ledger_->totals());
  }
  free_acknowledged(std::move(released));
  if (moved)
    handler_.on_progress();
}

void Connection::Impl::free_acknowledged(SendLedger::Released released) {
  released.frames.clear();
  for (SendLedger::PendingBulk& bulk : released.bulks) {
    bulk.sent->note_received();
    bulk.sent.reset();
  }
}

void Connection::Impl::read_messages(const FrameHeader& header) {
  std::vector<std::byte> payload(header.length);
  reader_->read(payload);
  note_received(header);
  handler_.on_messages(header.sequence, std::move(payload));
}

void Connection::Impl::read_bulk(const FrameHeader& header) {
  std::array<std::byte, kBulkPrefixSize> bytes;
  reader_->read(bytes);
  const uint64_t length = header.length - kBulkPrefixSize;
  const auto [lane, offset] = decode_bulk_prefix(bytes, length);
  const std::span<std::byte> target = handler_.bulk_target(lane, offset, length);
  check_internal(target.size() == length, "bulk_target() gives as many bytes as asked for");
  reader_->read(target);
  note_received(header);
  handler_.on_bulk(lane, offset, length, header.last);
}

void Connection::Impl::read_close(const FrameHeader& header) {
  std::vector<std::byte> payload(header.length);
  reader_->read(payload);
  std::string reason = decode_close_reason(payload);
  MutexLock lock(mutex_);
  peer_close_reason_ = std::move(reason);
}

// To be called before the handler, which may call applied() at once.
void Connection::Impl::note_received(const FrameHeader& header) {
  MutexLock lock(mutex_);
  const std::optional<Clock::time_point> due_before = received_.ack_due();
  received_.note_received(header, Clock::now());
  wake_writer_if_ack_due_changed(due_before);
}

bool Connection::Impl::is_closing() {
  MutexLock lock(mutex_);
  return state_.is_closing();
}

void Connection::Impl::wait_for_writer() {
  MutexLock lock(mutex_);
  while (!writer_.is_done())
    changed_.wait(mutex_);
}

void Connection::Impl::release_bulks() {
  BulkQueue unsent;  // destroyed after the lock is released, like the next
  SendLedger::Released unacknowledged;
  SendLedger::Released acknowledged;
  {
    MutexLock lock(mutex_);
    if (ledger_)
      unacknowledged = ledger_->take_all();
    std::swap(unsent, bulks_);
    std::swap(acknowledged, acknowledged_by_resume_);
  }
  free_acknowledged(std::move(acknowledged));
}

void Connection::Impl::run_watchdog() noexcept {
  begin_worker_thread("tr-watchdog");
  while (watch_until_silent()) {
    break_link(std::make_exception_ptr(
        ConnectionError("no answer from " + peer_ + " for " + in_words(options_.keepalive))));
  }
}

// True: the peer was silent for `keepalive`. False: the connection is stopping. Needs its own
// thread, because a dead peer may block both the reader and the writer.
bool Connection::Impl::watch_until_silent() {
  Keepalive keepalive(options_.keepalive, figures_.last_heard());
  MutexLock lock(mutex_);
  while (!state_.is_stopping()) {
    if (state_.is_broken()) {
      changed_.wait(mutex_);
      keepalive.begin_again(Clock::now());
      continue;
    }
    switch (keepalive.judge(figures_.last_heard(), Clock::now())) {
      case Keepalive::Verdict::kGone:
        return true;
      case Keepalive::Verdict::kAsk:
        due_.ping = true;
        work_.notify_one();
        break;
      case Keepalive::Verdict::kHeard:
        break;
    }
    changed_.wait_until(mutex_, keepalive.next());
    keepalive.note_wake(Clock::now());
  }
  return false;
}

}  // namespace torch_remote::transport
