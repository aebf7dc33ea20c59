// Describes the process or address that a socket is connected to.
#include <array>

#include <netdb.h>
#include <sys/socket.h>

#include "base/platform.h"

namespace torch_remote {
namespace {

std::string describe_process(const Fd& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return "a process of this machine";
  return "pid " + std::to_string(peer.pid) + ", uid " + std::to_string(peer.uid);
}

}  // namespace

std::string describe_peer(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket.get(), generic, &size) != 0)
    return "a peer that has disconnected";
  if (address.ss_family == AF_UNIX)
    return describe_process(socket);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(generic, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  const std::string name = host.data();
  return (address.ss_family == AF_INET6 ? "[" + name + "]" : name) + ":" + port.data();
}

}  // namespace torch_remote
