#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <unistd.h>

namespace torch_remote::server {

// When a server ends by itself, so that a forgotten machine stops costing money. 0: never.
struct LifetimeLimits {
  std::chrono::milliseconds idle{0};  // since the last call of any session
  std::chrono::milliseconds age{0};
};

// Why a server ends. The listener sends it to its sessions with SIGTERM, as sigqueue()'s value; a
// SIGTERM of anybody else has none, which is kStopped.
enum class EndReason : int { kStopped = 0, kIdle = 1, kAge = 2 };

// For clients and for the log.
std::string describe_end(EndReason reason, const LifetimeLimits& limits);

// When a process was last used. The listener's is told what its sessions write on their pages.
// Thread-safe.
class Activity {
 public:
  // Milliseconds of the steady clock, which is the same in all processes of a machine.
  static int64_t now() noexcept;

  // `start`: when the server began.
  explicit Activity(int64_t start = now()) : start_(start) {}

  int64_t start() const noexcept { return start_; }

  void touch() noexcept { note(now()); }

  // It was used at that time. A time in the future counts as now, so that no session can keep the
  // server alive after its own end.
  void note(int64_t time) noexcept;

  // Why the server should end now; empty while it should not.
  std::optional<EndReason> reason_to_end(const LifetimeLimits& limits) const;
  // How often to ask reason_to_end().
  static constexpr std::chrono::milliseconds kInterval{250};

 private:
  const int64_t start_;
  std::atomic<int64_t> last_{now()};
};

// Exit code of a session's process. The listener does not read it: it knows which sessions have
// begun, and a session that was taken over can exit with any code.
enum class SessionExit : int {
  kClosed = 0,
  kFailed = 1,  // the client was refused or broke the protocol, or the server could not start
};

// How long a session may finish its work after its client has gone.
inline constexpr std::chrono::milliseconds kGrace{500};

// Destructors of libtorch and CUDA do not run.
[[noreturn]] inline void leave(SessionExit code) {
  std::fflush(nullptr);
  ::_exit(static_cast<int>(code));
}

}  // namespace torch_remote::server
