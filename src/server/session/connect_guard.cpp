#include "server/session/connect_guard.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

namespace torch_remote::server {
namespace {

struct Guard {
  Networks networks;
  std::atomic<uint64_t> refused{0};
};

// Set once. A global, because the C library's functions have no object.
Guard* guard = nullptr;

}  // namespace

void limit_connections(Networks networks) {
  guard = new Guard{std::move(networks)};
}

}  // namespace torch_remote::server

// Exported, so that libraries find it before the C library's.
extern "C" __attribute__((visibility("default"))) int connect(int socket, const sockaddr* address,
                                                              socklen_t size) {
  using torch_remote::LogLevel;
  auto* const guard = torch_remote::server::guard;
  if (guard != nullptr && !guard->networks.contain(address, size)) {
    const uint64_t refused = ++guard->refused;
    if (std::has_single_bit(refused))  // a client can cause this line: the 1st, 2nd, 4th, 8th...
      torch_remote::log(LogLevel::kWarning,
                        "a connection to an address outside the networks of --peers was refused",
                        {{"refused", refused}});
    errno = ENETUNREACH;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_connect, socket, address, size));
}
