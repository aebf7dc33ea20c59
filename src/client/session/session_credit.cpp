// How far a session may run ahead of its server: with calls, and with the bytes of uploads.
#include <algorithm>

#include <ATen/record_function.h>

#include "client/process/waits_by_line.h"
#include "client/session/submission.h"

namespace torch_remote::client {
namespace {

// How much memory of ours may wait to be sent: messages, and uploads that were copied.
constexpr uint64_t kByteWindow = 64 << 20;
// How many bytes of uploads may be on their way. The server has memory for all of them.
constexpr uint64_t kUploadWindow = uint64_t{1} << 30;

}  // namespace

bool Session::has_credit() {
  const uint64_t bytes = order_.buffered_bytes();
  const uint64_t submitted = order_.submitted();
  const transport::Connection* const connection = link_.connection();
  if (connection == nullptr)
    return bytes < kByteWindow && call_window_.has_room(submitted);
  const auto flight = connection->in_flight();
  const uint64_t applied =
      std::max(flight.calls_applied, progress_.load(std::memory_order_relaxed));
  return flight.bytes + bytes < kByteWindow &&
         call_window_.has_room(std::max(submitted, applied) - applied);
}

bool Session::has_upload_credit() {
  return bulk_bytes_.load(std::memory_order_relaxed) < kUploadWindow &&
         our_bulk_bytes_.load(std::memory_order_relaxed) < kByteWindow && has_credit();
}

void Session::begin_call(const Uses& uses) {
  raise_own_failure(uses);
  if (has_credit())
    return;
  wait_until_credit(&Session::has_credit);
  raise_own_failure(uses);
}

void Session::begin_upload() {
  raise_own_failure();
  if (has_upload_credit())
    return;
  wait_until_credit(&Session::has_upload_credit);
  raise_own_failure();
}

void Session::wait_until_credit(bool (Session::*has)()) {
  RECORD_FUNCTION("torch_remote::wait", {});  // a row of torch.profiler
  const LineWait line_wait;
  link_.flush();
  credit_waiters_.fetch_add(1);

  struct Leave {
    std::atomic<int>& waiters;

    ~Leave() { waiters.fetch_sub(1); }
  } leave{credit_waiters_};

  wait_until(
      [this, has, thread = current_thread()] { return (this->*has)() || faults_.has(thread); },
      "credit");
}

void Session::on_progress() {
  const transport::Connection* const connection = link_.connection();
  if (connection == nullptr)
    return;  // the link is about to open
  const auto flight = connection->in_flight();
  const uint64_t submitted = std::max(order_.submitted(), flight.calls_received);
  // A frame is acknowledged after its first call may have been reported.
  const uint64_t reported = std::min(progress_.load(std::memory_order_relaxed), submitted);
  const bool is_in_frame = reported > flight.calls_applied;
  call_window_.progress({submitted, std::max(flight.calls_received, reported),
                         std::max(flight.calls_applied, reported), is_in_frame},
                        Clock::now());
  if (credit_waiters_.load() != 0)
    requests_.wake();
}

void Session::on_call_progress(uint64_t call) {
  if (call > progress_.load(std::memory_order_relaxed))  // the reader thread writes it alone
    progress_.store(call, std::memory_order_relaxed);
  on_progress();
}

// --- uploads

void Session::upload(const wire::Begin& begin, CallSite site, UploadSource source,
                     std::function<void(bool)> on_acknowledged) {
  welcome();  // bulk bytes need an open connection
  begin_upload();
  {
    Submission at(*this);
    at.use_current_stream(site.device);  // or STREAM would come between the cut and BEGIN
    at.cut_frame();
    at.number_message(site);
    encode(at.writer(), begin);
    at.cut_frame();
  }
  const uint64_t size = source.bytes.size();
  const uint64_t ours = source.is_ours ? size : 0;
  counters_.bytes_sent += size;
  bulk_bytes_.fetch_add(size, std::memory_order_relaxed);
  our_bulk_bytes_.fetch_add(ours, std::memory_order_relaxed);
  auto done = [this, size, ours, next = std::move(on_acknowledged)](bool received) {
    bulk_bytes_.fetch_sub(size, std::memory_order_relaxed);
    our_bulk_bytes_.fetch_sub(ours, std::memory_order_relaxed);
    next(received);
  };
  link_.connection()->send_bulk(begin.upload, source.bytes, std::move(source.owner),
                                std::move(done));
}

}  // namespace torch_remote::client
