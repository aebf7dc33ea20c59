#pragma once

#include <algorithm>
#include <chrono>

namespace torch_remote::transport {

// Decides when a silent peer is asked whether it is there, and when it counts as gone: after a
// third of `limit`, and after `limit`. Confined to one thread.
class Keepalive {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Verdict { kHeard, kAsk, kGone };  // kAsk: once for each silence

  Keepalive(Clock::duration limit, Clock::time_point start)
      : limit_(limit), counted_from_(start), next_(start) {}

  // `heard`: when the peer's last bytes came.
  Verdict judge(Clock::time_point heard, Clock::time_point now) {
    heard = std::max(heard, counted_from_);
    const Clock::duration silence = now - heard;
    if (silence >= limit_)
      return Verdict::kGone;
    const bool is_long = silence >= limit_ / 3;
    next_ = heard + (is_long ? limit_ : limit_ / 3);
    if (!is_long || asked_ == heard)
      return Verdict::kHeard;
    asked_ = heard;
    return Verdict::kAsk;
  }

  // When to judge next.
  Clock::time_point next() const noexcept { return next_; }

  // Silence before `now` does not count.
  void begin_again(Clock::time_point now) noexcept { counted_from_ = now; }

  // After a wait for next(). A wait that took much longer means that this process was stopped or
  // got no CPU time, which is not the peer's fault.
  void note_wake(Clock::time_point now) noexcept {
    if (now > next_ + limit_ / 3)
      begin_again(now);
  }

 private:
  const Clock::duration limit_;
  Clock::time_point counted_from_;
  Clock::time_point next_;
  Clock::time_point asked_;  // the silence for which it was asked begins there
};

}  // namespace torch_remote::transport
