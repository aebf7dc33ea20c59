#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace torch_remote::server {

// When a server ends by itself, so that a forgotten machine stops costing money. Zero: never.
struct LifetimeLimits {
  std::chrono::milliseconds idle{0};  // since the last call of any session
  std::chrono::milliseconds age{0};
};

// When the server was last used. Lies in memory that a listener shares with the sessions that it
// forks. Thread-safe, process-safe.
class Activity {
 public:
  // Leaks: processes that share it end on their own.
  static Activity& make_shared_memory();

  void touch() noexcept { last_.store(now(), std::memory_order_relaxed); }

  // Why the server should end now; nothing while it should not.
  std::optional<std::string> reason_to_end(const LifetimeLimits& limits) const;
  // Until reason_to_end() can have another answer; at most a second, so that it is asked often
  // enough.
  static constexpr std::chrono::milliseconds kInterval{250};

 private:
  static int64_t now() noexcept;

  const int64_t start_ = now();
  std::atomic<int64_t> last_{start_};  // milliseconds of the steady clock
};

}  // namespace torch_remote::server
