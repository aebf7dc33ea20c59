// What is the same on all operating systems.
#include <algorithm>
#include <array>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"

namespace torch_remote {
namespace {

std::string describe_process(const Fd& socket) {
  const std::optional<PeerProcess> peer = peer_process(socket);
  if (!peer)
    return "a process of this machine";
  return "pid " + std::to_string(peer->pid) + ", uid " + std::to_string(peer->uid);
}

}  // namespace

std::string identify_peer(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return "unknown";
  if (address.ss_family == AF_UNIX) {
    const std::optional<PeerProcess> peer = peer_process(socket);
    return peer ? "uid " + std::to_string(peer->uid) : "unknown";
  }
  if (address.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in&>(address).sin_addr, text.data(),
                text.size());
    return text.data();
  }
  in6_addr& whole = reinterpret_cast<sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&whole)) {
    ::inet_ntop(AF_INET, &whole.s6_addr[12], text.data(), text.size());
    return text.data();
  }
  std::fill(&whole.s6_addr[8], &whole.s6_addr[16], uint8_t{0});
  ::inet_ntop(AF_INET6, &whole, text.data(), text.size());
  return std::string(text.data()) + "/64";
}

std::string own_host(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  std::array<char, NI_MAXHOST> host{};
  if (::getsockname(socket.get(), generic, &size) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6) ||
      ::getnameinfo(generic, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return host.data();
}

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

std::string hostname() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    return "unknown-host";
  return name.data();
}

void begin_worker_thread(const char* name) noexcept {
  name_this_thread(name);
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF})
    sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

}  // namespace torch_remote
