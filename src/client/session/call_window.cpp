#include "client/session/call_window.h"

#include <algorithm>

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
  if (calls.received - calls.applied < kBacklog && !is_held_back) {
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
  busy.allowed = 2 * (calls.submitted - calls.applied);
  return busy;
}

void CallWindow::measure(Busy& busy, const Totals& calls, Clock::time_point now) noexcept {
  const Clock::duration elapsed = now - busy.since;
  const uint64_t applied = calls.applied - busy.applied;
  // The calls of a frame count when all are done, so a long frame gives no rate before.
  if (elapsed < kShortest || applied == 0)
    return;
  busy.rate = static_cast<double>(applied) / std::chrono::duration<double>(elapsed).count();
  if (elapsed < kLongest)
    return;
  busy.since = now;
  busy.applied = calls.applied;
}

uint64_t CallWindow::window_for(const Busy& busy, const Totals& calls) noexcept {
  if (!busy.rate)
    return std::clamp(busy.allowed, kFirst, kFull);
  const auto ahead = static_cast<uint64_t>(std::min<double>(*busy.rate * kAhead.count(), kFull));
  const uint64_t on_the_wire = std::max(busy.submitted, calls.received) - calls.received;
  return std::min(std::max(ahead, kFirst) + on_the_wire, kFull);
}

}  // namespace torch_remote::client
