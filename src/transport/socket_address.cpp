#include "transport/socket_address.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

template <typename Sockaddr>
SocketAddress from(const Sockaddr& address) {
  return {reinterpret_cast<const sockaddr*>(&address), sizeof address};
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size) : size_(size) {
  check_internal(size <= sizeof storage_, "a socket address fits into sockaddr_storage");
  std::memcpy(&storage_, address, size);
}

SocketAddress SocketAddress::unix_path(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw std::invalid_argument("the path of unix://" + path + " must have 1 to " +
                                std::to_string(sizeof address.sun_path - 1) + " bytes, and has " +
                                std::to_string(path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return from(address);
}

std::optional<SocketAddress> SocketAddress::loopback(const std::string& host, uint16_t port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  const char* const name = host == "localhost" ? "127.0.0.1" : host.c_str();
  if (::inet_pton(AF_INET, name, &v4.sin_addr) == 1) {
    const bool is_loopback = ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    return is_loopback ? std::optional(from(v4)) : std::nullopt;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, name, &v6.sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr))
    return from(v6);
  return std::nullopt;
}

SocketAddress SocketAddress::of_socket(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw_system_errno("getsockname", errno);
  return {reinterpret_cast<const sockaddr*>(&address), size};
}

uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

std::vector<SocketAddress> resolve(const Address& address) {
  if (address.scheme == "unix")
    return {SocketAddress::unix_path(address.path)};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0)
    throw ConnectionError("looking up host '" + address.host + "': " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next)
    addresses.emplace_back(entry->ai_addr, entry->ai_addrlen);
  return addresses;
}

}  // namespace torch_remote::transport
