#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Where a server listens: unix:///path/to.sock or tcp://host:port, with IPv6 as tcp://[::1]:port.
struct Address {
  std::string scheme;  // "unix" or "tcp"
  std::string host;    // tcp only, without brackets
  uint16_t port = 0;   // tcp only; 0 lets listen_on() choose
  std::string path;    // unix only
};

bool operator==(const Address& a, const Address& b);

// Throws std::invalid_argument with a sentence for the user.
Address parse_address(std::string_view url);
std::string to_string(const Address& address);

// Connects, or throws ConnectionError by the deadline. Looking a host name up may take longer than
// that.
std::unique_ptr<Stream> dial(const Address& address,
                             std::chrono::steady_clock::time_point deadline);

// A listening socket for accept_connection(). TCP only on loopback (127.0.0.0/8, ::1, localhost);
// port 0 is replaced by the one chosen. A Unix socket is made for its owner only; a socket file
// that nobody listens on any more is replaced. Throws std::invalid_argument for an address that is
// refused, ConnectionError for the rest.
Fd listen_on(Address& address);

}  // namespace torch_remote::transport
