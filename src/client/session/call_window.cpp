#include "client/session/call_window.h"

#include <algorithm>
#include <utility>

namespace torch_remote::client {
namespace {

constexpr std::chrono::duration<double> kAhead{2};
// The shortest and longest interval over which the rate is measured.
constexpr std::chrono::milliseconds kShortest{10};
constexpr std::chrono::milliseconds kLongest{250};

}  // namespace

void CallWindow::progress(const Totals& calls, Clock::time_point now) noexcept {
  const bool has_refused = has_refused_.exchange(false, std::memory_order_relaxed);
  if (busy_)
    measure(*busy_, calls, now);
  // A slow server may have no backlog only because the client had to wait: keep the small window.
  const bool is_held_back = has_refused && busy_ && busy_->rate;
  const bool is_slow_now = calls.is_in_frame || (busy_ && is_slow(*busy_));
  if (calls.received - calls.applied < kBacklog && !is_held_back && !is_slow_now) {
    busy_.reset();
    const uint64_t window = calls.applied < kFirst ? kFirst + 2 * calls.applied : kFull;
    return window_.store(window, std::memory_order_relaxed);
  }
  if (!busy_)
    busy_ = begin_busy(calls, now);
  window_.store(window_for(*busy_, calls), std::memory_order_relaxed);
}

CallWindow::Busy CallWindow::begin_busy(const Totals& calls, Clock::time_point now) noexcept {
  Busy busy;
  busy.since = now;
  busy.applied = calls.applied;
  busy.submitted = calls.submitted;
  const uint64_t under_way = calls.submitted - calls.applied;
  busy.allowed = calls.is_in_frame ? under_way : 2 * under_way;
  return busy;
}

bool CallWindow::is_slow(const Busy& busy) noexcept {
  return busy.rate && *busy.rate * kAhead.count() < kFirst;
}

void CallWindow::measure(Busy& busy, const Totals& calls, Clock::time_point now) noexcept {
  const bool was_idle = std::exchange(busy.was_idle, calls.received == calls.applied);
  const std::chrono::duration<double> elapsed = now - busy.since;
  const uint64_t applied = calls.applied - busy.applied;
  const double rate = static_cast<double>(applied) / std::max(elapsed.count(), 1e-6);
  if (was_idle) {  // the interval has time without work in it: the server may be faster
    if (busy.rate)
      busy.rate = std::max(*busy.rate, rate);
  } else {
    if (elapsed < kShortest || applied == 0)
      return;
    busy.rate = rate;
    if (elapsed < kLongest)
      return;
  }
  busy.since = now;
  busy.applied = calls.applied;
}

uint64_t CallWindow::window_for(const Busy& busy, const Totals& calls) noexcept {
  if (!busy.rate)
    return std::clamp(busy.allowed, kFirst, kFull);
  const auto ahead = static_cast<uint64_t>(std::min<double>(*busy.rate * kAhead.count(), kFull));
  const uint64_t on_the_wire = std::max(busy.submitted, calls.received) - calls.received;
  return std::min(std::max(ahead, kLeast) + on_the_wire, kFull);
}

}  // namespace torch_remote::client
