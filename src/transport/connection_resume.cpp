// What a connection does when its stream breaks, and how it resumes over a new one.
#include <utility>

#include "base/error.h"
#include "transport/connection_impl.h"

namespace torch_remote::transport {

// The first cause is kept. Ends a connection that cannot be resumed or has sent its close frame.
void Connection::Impl::break_link(std::exception_ptr cause) noexcept {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    if (options_.is_resumable && !close_sent_ && !stopping_) {
      if (!is_broken_) {
        is_broken_ = true;
        broken_by_ = cause;
      }
      stream = stream_;
      work_.notify_all();
      changed_.notify_all();
    }
  }
  if (stream == nullptr)
    return stop(std::move(cause));
  stream->shutdown();
}

// True: resumed over a new stream. False: the connection ends.
bool Connection::Impl::wait_for_resume(std::exception_ptr cause) {
  break_link(std::move(cause));
  std::exception_ptr first;
  uint64_t link = 0;
  uint64_t received = 0;
  {
    MutexLock lock(mutex_);
    wait_for_writer_to_park();
    if (stopping_)
      return false;
    link = link_;
    first = broken_by_;
    received = received_;
    reader_parked_ = true;
    changed_.notify_all();
  }
  handler_.on_broken(std::move(first), received);
  MutexLock lock(mutex_);
  while (link_ == link && !stopping_)
    changed_.wait(mutex_);
  return !stopping_;
}

void Connection::Impl::wait_for_writer_to_park() {
  while (!writer_parked_ && !writer_done_ && !stopping_)
    changed_.wait(mutex_);
}

// On the reader thread: takes the first stream, or the one that resume() has installed.
void Connection::Impl::take_stream() {
  std::shared_ptr<Stream> stream;
  SendLedger::Released released;
  bool is_first = incoming_ == nullptr;
  {
    MutexLock lock(mutex_);
    stream = stream_;
    std::swap(released, acknowledged_by_resume_);
  }
  reader_.reset();
  incoming_ = std::move(stream);
  reader_.emplace(*incoming_, [this](size_t count) { note_bytes(count); });
  free_acknowledged(std::move(released));
  if (!is_first)
    handler_.on_progress();
}

std::optional<uint64_t> Connection::Impl::suspend(std::exception_ptr cause) {
  break_link(std::move(cause));
  MutexLock lock(mutex_);
  while (!reader_parked_ && !stopping_)
    changed_.wait(mutex_);
  return stopping_ ? std::nullopt : std::optional(received_);
}

bool Connection::Impl::resume(std::unique_ptr<Stream> stream, uint64_t peer_received) {
  std::shared_ptr<Stream> left;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (stopping_ || !reader_parked_)
    return false;
  ledger_->acknowledge(peer_received, acknowledged_by_resume_);
  left = std::exchange(stream_, std::move(stream));
  current_stream_.store(stream_.get());
  ++link_;
  is_broken_ = false;
  reader_parked_ = false;
  broken_by_ = nullptr;
  resend_after_ = peer_received;
  acks_.resumed();
  last_heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  work_.notify_all();
  changed_.notify_all();
  return true;
}

bool Connection::Impl::wait_while_broken(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (reader_parked_ && !stopping_)
    if (!changed_.wait_until(mutex_, deadline))
      return !reader_parked_ || stopping_;
  return true;
}

bool Connection::Impl::is_ending() {
  MutexLock lock(mutex_);
  return stopping_;
}

uint64_t Connection::Impl::acknowledged() {
  MutexLock lock(mutex_);
  return ledger_ ? ledger_->acknowledged() : 0;
}

}  // namespace torch_remote::transport
