#include "server/session/connect_guard.h"

#include <cerrno>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"
#include "transport/address.h"
#include "transport/dial.h"

namespace torch_remote::server {
namespace {

// What connect() gives in a process that is limited to these networks; 0: it is connected.
int error_with(const char* networks, const transport::SocketAddress& to) {
  const pid_t child = ::fork();  // the limit is for a whole process
  if (child == 0) {
    limit_connections(Networks::parse("--peers", networks));
    const Fd socket = stream_socket(to.family());
    ::_exit(::connect(socket.get(), to.get(), to.size()) == 0 ? 0 : errno);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

// Promise 14b.
TEST(ConnectGuard, AProcessConnectsToItsNetworksOnlyWhoeverCalls) {
  transport::Address address;
  address.scheme = "tcp";
  address.host = "127.0.0.1";
  const Fd listens = transport::listen_on(address);
  const auto to = transport::SocketAddress::loopback(address.host, address.port);
  ASSERT_TRUE(to);
  EXPECT_EQ(error_with("127.0.0.0/8", *to), 0);
  EXPECT_EQ(error_with("192.0.2.0/24,fd00::/8", *to), ENETUNREACH);
}

}  // namespace
}  // namespace torch_remote::server
