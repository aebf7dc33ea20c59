#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "base/fd.h"
#include "transport/address.h"

namespace torch_remote::transport {

// An address as the socket calls take it. A value.
class SocketAddress {
 public:
  SocketAddress(const sockaddr* address, socklen_t size);

  // Throws std::invalid_argument when the path is too long (over 107 bytes on Linux).
  static SocketAddress unix_path(const std::string& path);
  // Empty unless the host is 127.0.0.0/8, ::1 or localhost.
  static std::optional<SocketAddress> loopback(const std::string& host, uint16_t port);
  static SocketAddress of_socket(const Fd& socket);  // where it is bound

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }

  socklen_t size() const noexcept { return size_; }

  int family() const noexcept { return storage_.ss_family; }

  uint16_t port() const noexcept;  // 0 for Unix

 private:
  sockaddr_storage storage_{};
  socklen_t size_;
};

// All addresses of the host, in order. Throws ConnectionError when the host is unknown.
std::vector<SocketAddress> resolve(const Address& address);

}  // namespace torch_remote::transport
