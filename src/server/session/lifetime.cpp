#include "server/session/lifetime.h"

#include <algorithm>

#include "base/units.h"

namespace torch_remote::server {

std::string describe_end(EndReason reason, const LifetimeLimits& limits) {
  switch (reason) {
    case EndReason::kIdle:
      return "the server has ended by itself: nobody has used it for its --idle-timeout of " +
             duration_text(limits.idle);
    case EndReason::kAge:
      return "the server has ended by itself: it has reached its --max-lifetime of " +
             duration_text(limits.age);
    case EndReason::kStopped:
      break;
  }
  return "the server was stopped";
}

int64_t Activity::now() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

void Activity::note(int64_t time) noexcept {
  const int64_t known = last_.load(std::memory_order_relaxed);
  last_.store(std::max(known, std::min(time, now())), std::memory_order_relaxed);
}

std::optional<EndReason> Activity::reason_to_end(const LifetimeLimits& limits) const {
  const int64_t time = now();
  if (limits.age.count() > 0 && time - start_ >= limits.age.count())
    return EndReason::kAge;
  if (limits.idle.count() > 0 && time - last_.load() >= limits.idle.count())
    return EndReason::kIdle;
  return std::nullopt;
}

}  // namespace torch_remote::server
