#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "base/fd.h"

namespace torch_remote::transport {

// Where a server listens: unix:///path/to.sock, tcp://host:port or tls://host:port?options, with
// IPv6 as tcp://[::1]:port.
//
//   options := option ("&" option)*
//   option  := ("pin" | "cert" | "key" | "ca") "=" value      %XX in a value is one byte
struct Address {
  std::string scheme;  // "unix", "tcp" or "tls"
  std::string host;    // tcp and tls only, without brackets
  uint16_t port = 0;   // tcp and tls only; 0 lets listen_on() choose
  std::string path;    // unix only

  // tls only; each may be empty. transport/tls_context.h says what they mean.
  std::string pin;
  std::string cert;
  std::string key;
  std::string ca;
};

bool operator==(const Address& a, const Address& b);

// Throws std::invalid_argument with a message for the user.
Address parse_address(std::string_view url);
std::string to_string(const Address& address);
// Without the options, for messages.
std::string short_name(const Address& address);

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
