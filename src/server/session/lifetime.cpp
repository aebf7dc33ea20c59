#include "server/session/lifetime.h"

#include <algorithm>

namespace torch_remote::server {

int64_t Activity::now() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

void Activity::note(int64_t time) noexcept {
  const int64_t known = last_.load(std::memory_order_relaxed);
  last_.store(std::max(known, std::min(time, now())), std::memory_order_relaxed);
}

std::optional<std::string> Activity::reason_to_end(const LifetimeLimits& limits) const {
  const int64_t time = now();
  if (limits.age.count() > 0 && time - start_ >= limits.age.count())
    return "it has reached its --max-lifetime of " + std::to_string(limits.age.count()) + " ms";
  if (limits.idle.count() > 0 && time - last_.load() >= limits.idle.count()) {
    return "nobody has used it for its --idle-timeout of " + std::to_string(limits.idle.count()) +
           " ms";
  }
  return std::nullopt;
}

}  // namespace torch_remote::server
