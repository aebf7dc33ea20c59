#include "transport/connection.h"

#include <utility>

#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "base/text.h"
#include "transport/connection_impl.h"

namespace torch_remote::transport {
namespace {

// Cuts the reason to what a close frame may carry, between characters.
std::string fit_reason(std::string_view reason) {
  const std::string_view fitted = cut_text(reason, kMaxCloseReason);
  if (!is_utf8(std::as_bytes(std::span(fitted))))
    return "(the reason is not UTF-8)";
  return std::string(fitted);
}

// The Impl that this thread works for. Such a thread must not wait for the connection to end.
thread_local const void* own_connection = nullptr;

}  // namespace

Connection::Impl::Impl(std::unique_ptr<Stream> stream, Handler& handler, const Options& options,
                       std::atomic<bool>& flush_pending)
    : handler_(handler),
      options_(options),
      peer_(stream->peer()),
      pid_(this_process()),
      flush_pending_(flush_pending),
      current_stream_(stream.get()),
      state_(options.is_resumable),
      stream_(std::move(stream)),
      ledger_(options.is_resumable) {}

Connection::Impl::~Impl() {
  abort();
  join_threads();
  release_bulks();  // bulks are left only if the reader thread was never started
}

void Connection::Impl::join_threads() {
  for (std::thread* thread : {&reader_thread_, &writer_thread_, &watchdog_thread_})
    if (thread->joinable())
      thread->join();
}

bool Connection::Impl::is_in_forked_child() const noexcept {
  return this_process() != pid_;
}

// Called by a pthread_atfork handler, where this_process() may still give the parent's pid.
void Connection::Impl::abandon_in_forked_child() noexcept {
  Stream* const stream = current_stream_.load();
  if (stream != nullptr && ::getpid() != pid_)
    stream->close_in_forked_child();
}

std::thread Connection::Impl::run(void (Impl::*loop)() noexcept) {
  std::thread thread([this, loop] {
    own_connection = this;
    (this->*loop)();
    MutexLock lock(mutex_);
    --running_;
    changed_.notify_all();
  });
  MutexLock lock(mutex_);
  ++running_;
  return thread;
}

void Connection::Impl::start() {
  {
    MutexLock lock(mutex_);
    writer_.start();
  }
  try {
    if (options_.keepalive.count() > 0)
      watchdog_thread_ = run(&Impl::run_watchdog);
    writer_thread_ = run(&Impl::run_writer);
    reader_thread_ = run(&Impl::run_reader);  // last, because it calls on_end()
  } catch (...) {
    stop(std::current_exception());
    throw;
  }
}

void Connection::Impl::stop(std::exception_ptr cause) noexcept {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_;
    if (state_.stop())
      cause_ = std::move(cause);
    work_.notify_all();
    changed_.notify_all();
  }
  if (stream != nullptr)
    stream->shutdown();
}

bool Connection::Impl::release(std::chrono::milliseconds wait) {
  const Clock::time_point deadline = Clock::now() + wait;
  std::shared_ptr<Stream> stream;
  std::optional<SendLedger> unsent;  // destroyed after the lock is released, like the stream
  {
    MutexLock lock(mutex_);
    while (running_ > 0 && Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
    if (!state_.is_stopping() || running_ > 0)
      return false;
    current_stream_ = nullptr;
    stream = std::move(stream_);
    unsent.swap(ledger_);
  }
  join_threads();
  incoming_.reset();
  reader_.reset();
  outgoing_.reset();
  return true;
}

void Connection::Impl::abort() noexcept {
  stop(std::make_exception_ptr(
      ConnectionError("the connection to " + peer_ + " was ended on this side")));
}

void Connection::Impl::close(std::string_view reason, std::chrono::milliseconds wait) {
  const Clock::time_point deadline = Clock::now() + wait;
  bool was_flushed = false;
  {
    MutexLock lock(mutex_);
    close_reason_ = fit_reason(reason);
    work_.notify_one();
    if (own_connection == this)
      return;
    while (writer_.is_started() && !state_.is_stopping() && Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
    was_flushed = state_.is_closing() || !writer_.is_started();
  }
  // Does nothing after a clean end.
  stop(was_flushed ? nullptr
                   : std::make_exception_ptr(ConnectionError(
                         "closing: " + peer_ + " did not take what was still to be sent within " +
                         std::to_string(wait.count()) + " ms")));
}

std::string Connection::Impl::peer_close_reason() {
  MutexLock lock(mutex_);
  return peer_close_reason_;
}

Connection::Connection(std::unique_ptr<Stream> stream, Handler& handler, Options options)
    : impl_(std::make_unique<Impl>(std::move(stream), handler, options, flush_pending_)) {}

Connection::~Connection() {
  // The child has no copy of the threads, and one of them may hold the mutex: leak everything.
  if (impl_->is_in_forked_child())
    static_cast<void>(impl_.release());
}

void Connection::start() {
  if (!impl_->is_in_forked_child())
    impl_->start();
}

void Connection::flush() noexcept {
  if (!impl_->is_in_forked_child())
    impl_->flush();
}

void Connection::request_flush_soon() noexcept {
  if (!flush_pending_.exchange(true) && !impl_->is_in_forked_child())
    impl_->wake_writer();
}

void Connection::send_bulk(uint64_t lane, std::span<const std::byte> bytes,
                           std::shared_ptr<const void> owner, std::function<void(bool)> on_acked,
                           BulkPart part) {
  if (!impl_->is_in_forked_child())
    impl_->send_bulk(lane, bytes, std::move(owner), std::move(on_acked), part);
}

void Connection::applied(uint64_t sequence) noexcept {
  if (!impl_->is_in_forked_child())
    impl_->applied(sequence);
}

Connection::InFlight Connection::in_flight() const noexcept {
  const SendLedger::Totals sent = impl_->figures().in_flight();
  return {sent.bytes, sent.calls, sent.last_applied, sent.calls_applied, sent.calls_received};
}

void Connection::close(std::string_view reason, std::chrono::milliseconds wait) {
  if (!impl_->is_in_forked_child())
    impl_->close(reason, wait);
}

void Connection::abort() noexcept {
  if (!impl_->is_in_forked_child())
    impl_->abort();
}

bool Connection::release(std::chrono::milliseconds wait) {
  return impl_->is_in_forked_child() || impl_->release(wait);
}

std::optional<uint64_t> Connection::suspend(std::exception_ptr cause) {
  return impl_->is_in_forked_child() ? std::nullopt : impl_->suspend(std::move(cause));
}

bool Connection::resume(std::unique_ptr<Stream> stream, uint64_t peer_received) {
  return !impl_->is_in_forked_child() && impl_->resume(std::move(stream), peer_received);
}

bool Connection::wait_while_broken(std::chrono::steady_clock::time_point deadline) {
  return impl_->is_in_forked_child() || impl_->wait_while_broken(deadline);
}

bool Connection::is_ending() const {
  return impl_->is_in_forked_child() || impl_->is_ending();
}

uint64_t Connection::acknowledged() const {
  return impl_->is_in_forked_child() ? 0 : impl_->acknowledged();
}

std::string Connection::peer_close_reason() const {
  return impl_->is_in_forked_child() ? std::string() : impl_->peer_close_reason();
}

Connection::Totals Connection::totals() const noexcept {
  const ConnectionFigures& figures = impl_->figures();
  return {figures.bytes_sent(), figures.bytes_received(), figures.frames_sent()};
}

void Connection::abandon_in_forked_child() noexcept {
  impl_->abandon_in_forked_child();
}

}  // namespace torch_remote::transport
