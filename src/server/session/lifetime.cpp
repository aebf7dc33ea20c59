#include "server/session/lifetime.h"

#include <cerrno>
#include <new>

#include <sys/mman.h>

#include "base/error.h"

namespace torch_remote::server {

static_assert(std::atomic<int64_t>::is_always_lock_free, "it is shared between processes");

Activity& Activity::make_shared_memory() {
  void* const memory =
      ::mmap(nullptr, sizeof(Activity), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw_system_errno("mmap", errno);
  return *new (memory) Activity();
}

int64_t Activity::now() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
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
