#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torch_remote::transport {

// Where a server listens: unix:///path/to.sock or tcp://host:port, with IPv6 as tcp://[::1]:port.
struct Address {
  std::string scheme;  // "unix" or "tcp"
  std::string host;    // tcp only, without brackets
  uint16_t port = 0;   // tcp only; 0 lets listen_on() choose
  std::string path;    // unix only
};

bool operator==(const Address& a, const Address& b);

// Throws std::invalid_argument with a message for the user.
Address parse_address(std::string_view url);
std::string to_string(const Address& address);

}  // namespace torch_remote::transport
