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
    if (state_.survives_its_stream()) {
      if (state_.break_stream())
        broken_by_ = cause;
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
  uint64_t received = 0;
  {
    MutexLock lock(mutex_);
    wait_for_writer_to_park();
    if (state_.is_stopping())
      return false;
    state_.park();
    first = broken_by_;
    received = received_.received();
    changed_.notify_all();
  }
  handler_.on_broken(std::move(first), received);
  MutexLock lock(mutex_);
  while (state_.is_parked())
    changed_.wait(mutex_);
  return !state_.is_stopping();
}

void Connection::Impl::wait_for_writer_to_park() {
  while (!writer_.is_parked() && !state_.is_stopping())
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
  reader_.emplace(*incoming_, [this](size_t count) { figures_.note_received(count); });
  free_acknowledged(std::move(released));
  if (!is_first)
    handler_.on_progress();
}

std::optional<uint64_t> Connection::Impl::suspend(std::exception_ptr cause) {
  break_link(std::move(cause));
  MutexLock lock(mutex_);
  while (!state_.is_parked() && !state_.is_stopping())
    changed_.wait(mutex_);
  return state_.is_stopping() ? std::nullopt : std::optional(received_.received());
}

bool Connection::Impl::resume(std::unique_ptr<Stream> stream, uint64_t peer_received) {
  std::shared_ptr<Stream> left;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (!state_.is_parked())
    return false;
  ledger_->acknowledge(peer_received, acknowledged_by_resume_);  // may throw
  state_.resume();
  left = std::exchange(stream_, std::move(stream));
  current_stream_.store(stream_.get());
  broken_by_ = nullptr;
  due_.resend_after = peer_received;
  received_.note_resumed();
  figures_.note_heard();
  work_.notify_all();
  changed_.notify_all();
  return true;
}

bool Connection::Impl::wait_while_broken(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (state_.is_parked())
    if (!changed_.wait_until(mutex_, deadline))
      return !state_.is_parked();
  return true;
}

bool Connection::Impl::is_ending() {
  MutexLock lock(mutex_);
  return state_.is_stopping();
}

uint64_t Connection::Impl::acknowledged() {
  MutexLock lock(mutex_);
  return ledger_ ? ledger_->acknowledged() : 0;
}

}  // namespace torch_remote::transport
