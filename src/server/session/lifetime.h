#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace torch_remote::server {

// When a server ends by itself, so that a forgotten machine stops costing money. 0: never.
struct LifetimeLimits {
  std::chrono::milliseconds idle{0};  // since the last call of any session
  std::chrono::milliseconds age{0};
};

// When the server was last used. In memory that the listener shares with the sessions it forks.
// Thread-safe and process-safe.
class Activity {
 public:
  // Never unmapped.
  static Activity& make_shared_memory();

  void touch() noexcept { last_.store(now(), std::memory_order_relaxed); }

  // Why the server should end now; empty while it should not.
  std::optional<std::string> reason_to_end(const LifetimeLimits& limits) const;
  // How often to ask reason_to_end().
  static constexpr std::chrono::milliseconds kInterval{250};

 private:
  static int64_t now() noexcept;

  const int64_t start_ = now();
  std::atomic<int64_t> last_{start_};  // milliseconds of the steady clock
};

}  // namespace torch_remote::server
