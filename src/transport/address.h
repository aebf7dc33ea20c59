#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace torch_remote::transport
