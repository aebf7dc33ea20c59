#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

namespace torch_remote {

// Networks of IP addresses, IPv4 and IPv6. A value.
class Networks {
 public:
  // Loopback: 127.0.0.0/8 and ::1.
  Networks();
  // "10.0.0.0/8,fd00::/8"; an address without a prefix is a network of its own. Throws
  // std::invalid_argument, which begins with `option`.
  static Networks parse(const std::string& option, std::string_view text);
  // Those that the interfaces of this machine are in, loopback among them.
  static Networks of_this_machine();

  // False also for what is no address in digits.
  bool contain(const std::string& host) const;
  // True for addresses that are not of IP.
  bool contain(const sockaddr* address, socklen_t size) const;

 private:
  // IPv4 addresses are mapped into IPv6: ::ffff:10.0.0.1.
  using Bytes = std::array<uint8_t, 16>;

  struct Network {
    Bytes address{};
    unsigned bits = 128;  // how many of the first bits count
  };

  struct Nothing {};

  explicit Networks(Nothing) {}

  bool contain(const Bytes& address) const;

  std::vector<Network> networks_;
};

}  // namespace torch_remote
