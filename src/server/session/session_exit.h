#pragma once

#include <chrono>
#include <cstdio>

#include <unistd.h>

namespace torch_remote::server {

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
