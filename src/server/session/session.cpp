#include "server/session/session.h"

#include <algorithm>

#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/log.h"
#include "server/executor/failures.h"
#include "server/session/handshake.h"
#include "server/session/warnings.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

uint64_t cost_of(const std::vector<std::byte>& payload) {
  return payload.size() + transport::kFrameCost;
}

}  // namespace

Session::Session(std::unique_ptr<transport::Stream> stream, const Devices& devices,
                 const OperatorTable& table, Hooks hooks, transport::Connection::Options options)
    : hooks_(std::move(hooks)),
      uploads_(devices.is_cuda(), UploadLimits::for_max_memory(hooks_.max_memory), hooks_.cache),
      interpreter_(devices, table, uploads_, replies_,
                   {hooks_.call_log, hooks_.max_memory, hooks_.peers, hooks_.files}),
      connection_(std::move(stream), *this, options) {
  if (hooks_.sends_shortages)
    replies_.send_shortages();
  replies_.attach(&connection_);
}

Session::~Session() {
  interpreter_.close_links();  // their threads may answer
  connection_.abort();
}

bool Session::run() {
  const c10::InferenceMode inference_mode;
  Warnings warnings(hooks_.sends_warnings ? &replies_ : nullptr, interpreter_);
  const c10::WarningUtils::WarningHandlerGuard warning_guard(&warnings);
  connection_.start();
  try {
    ReceivedFrame frame;
    for (Work work = next_work(frame); work != Work::kEnd; work = next_work(frame))
      if (work == Work::kFrame)
        apply(frame);
      else
        interpreter_.write_arrived();
  } catch (const ConnectionError&) {
    // on_end() has kept the first cause.
  } catch (const DeviceLost& lost) {
    replies_.error(0, lost.error);
    return end_with("the device is lost: " + lost.error.message);
  } catch (const std::exception& error) {
    return end_with(error.what());
  }
  report_end();
  return true;
}

void Session::apply(const ReceivedFrame& frame) {
  if (hooks_.on_work)
    hooks_.on_work(true);
  interpreter_.apply(frame.payload);
  connection_.applied(frame.sequence);
  note_use();
  publish_figures();
  if (hooks_.on_work)
    hooks_.on_work(false);
}

Session::Work Session::next_work(ReceivedFrame& frame) {
  MutexLock lock(mutex_);
  // While the connection is broken, replies are kept up to a limit; then calls wait.
  while (!has_ended_ && (frames_.empty() || (is_broken_ && replies_.is_half_full()))) {
    if (std::exchange(has_arrivals_, false))
      return Work::kArrivals;
    changed_.wait(mutex_);
  }
  if (has_ended_)
    return Work::kEnd;
  frame = std::move(frames_.front());
  frames_.pop_front();
  queued_bytes_ -= cost_of(frame.payload);
  return Work::kFrame;
}

void Session::note_use() {
  if (!is_used_.load(std::memory_order_relaxed)) {
    const wire::Counters counters = interpreter_.counters();
    is_used_.store(counters.calls != 0 || counters.storages != 0, std::memory_order_relaxed);
  }
  --unapplied_frames_;
}

void Session::publish_figures() {
  if (hooks_.page == nullptr)
    return;
  const wire::Counters counters = interpreter_.counters();
  SessionPage::Figures figures;
  figures.calls = counters.calls;
  figures.failures = interpreter_.failures();
  const transport::Connection::Totals totals = connection_.totals();
  figures.bytes_received = totals.bytes_received;
  figures.bytes_sent = totals.bytes_sent;
  figures.memory = counters.storage_bytes;
  figures.storages = counters.storages;
  figures.answers = interpreter_.answers();
  {
    MutexLock lock(mutex_);
    figures.queued = queued_bytes_;
  }
  hooks_.page->publish(figures);
}

bool Session::end_with(const std::string& reason) {
  if (hooks_.page != nullptr)
    hooks_.page->note_end(reason);
  log(LogLevel::kError, "session ended", {{"reason", reason}});
  connection_.close(reason);
  return false;
}

// Refuses an old attempt to resume that arrives after a newer one has succeeded.
void Session::resume(std::unique_ptr<transport::Stream> stream, uint64_t client_received) {
  MutexLock lock(resume_mutex_);
  if (client_received < connection_.acknowledged())
    throw ProtocolError("the client resumes with an old count of received frames");
  const auto received = connection_.suspend(
      std::make_exception_ptr(ConnectionError("the client came back on another connection")));
  if (!received)
    throw ConnectionError("the session is over");
  send_resumed(*stream, *received);
  connection_.resume(std::move(stream), client_received);
}

void Session::expect_no_return() {
  {
    MutexLock lock(mutex_);
    nobody_returns_ = true;
    if (!is_broken_)
      return;
  }
  connection_.abort();
}

void Session::stop(const std::string& reason, std::chrono::milliseconds wait) {
  connection_.close(reason, wait);
}

// Reports how the session ended and what the client has not freed: a warning, unless the client
// closed the connection or made no call.
void Session::report_end() {
  const wire::Counters counters = interpreter_.counters();
  MutexLock lock(mutex_);
  const bool is_news = !cause_.empty() && counters.calls != 0;
  log(is_news ? LogLevel::kWarning : LogLevel::kInfo, "session ended",
      {{"cause", cause_.empty() ? "closed by the client" : cause_},
       {"calls", counters.calls},
       {"mispredicted", counters.mispredicted},
       {"storages_left", counters.storages},
       {"bytes_left", counters.storage_bytes}});
}

// --- the connection's threads

std::vector<std::byte> Session::take_messages(uint32_t& calls) {
  calls = 0;
  return replies_.take();
}

void Session::on_messages(uint64_t sequence, std::vector<std::byte> payload) {
  uploads_.expect_from(payload);
  if (const auto call = wire::find_cancel(payload))
    interpreter_.cancel_to(*call);
  {
    MutexLock lock(mutex_);
    queued_bytes_ += cost_of(payload);
    wire::check_limit("bytes of frames that wait for the executor", queued_bytes_,
                      hooks_.max_queued_bytes);
    frames_.push_back({sequence, std::move(payload)});
    ++unapplied_frames_;
  }
  changed_.notify_one();
}

std::span<std::byte> Session::bulk_target(uint64_t lane, uint64_t offset, uint64_t length) {
  return uploads_.target(lane, offset, length);
}

void Session::on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t length, bool last) {
  if (!uploads_.received(lane, length, last))
    return;
  {
    MutexLock lock(mutex_);
    has_arrivals_ = true;
  }
  changed_.notify_one();
}

void Session::on_broken(std::exception_ptr cause, uint64_t /*received*/) {
  const auto since = std::chrono::steady_clock::now();
  log(LogLevel::kInfo, "connection lost; the session waits for its client",
      {{"cause", text_of(cause)}, {"lease_ms", hooks_.lease.count()}});
  if (!set_broken(true))
    throw ConnectionError(text_of(cause) +
                          "; the listener is gone, so that no client can come back");
  auto time = std::min(hooks_.lease, hooks_.unused_lease);
  bool is_back = connection_.wait_while_broken(since + time);
  if (!is_back && (is_used_ || unapplied_frames_ > 0)) {
    time = hooks_.lease;
    is_back = connection_.wait_while_broken(since + time);
  }
  if (!is_back) {
    throw ConnectionError(text_of(cause) + "; the client did not come back within the lease of " +
                          std::to_string(time.count()) + " ms");
  }
  set_broken(false);
  if (connection_.is_ending())
    return;
  const auto gone = std::chrono::steady_clock::now() - since;
  log(LogLevel::kInfo, "connection resumed",
      {{"after_ms", std::chrono::duration_cast<std::chrono::milliseconds>(gone).count()}});
}

bool Session::set_broken(bool is_broken) {
  bool may_return = false;
  {
    MutexLock lock(mutex_);
    is_broken_ = is_broken;
    may_return = !nobody_returns_;
  }
  changed_.notify_all();
  return may_return;
}

void Session::on_end(std::exception_ptr cause) noexcept {
  {
    MutexLock lock(mutex_);
    has_ended_ = true;
    cause_ = text_of(cause);
    if (hooks_.page != nullptr)
      hooks_.page->note_end(cause_);
  }
  changed_.notify_all();
  uploads_.end();
  if (hooks_.on_end)
    hooks_.on_end();
}

}  // namespace torch_remote::server
