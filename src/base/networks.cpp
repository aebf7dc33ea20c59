#include "base/networks.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

namespace torch_remote {
namespace {

using Bytes = std::array<uint8_t, 16>;

constexpr unsigned kMappedBits = 96;  // of the prefix ::ffff:0:0/96

Bytes mapped(const in_addr& four) {
  Bytes bytes{};
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(&bytes[12], &four, sizeof four);
  return bytes;
}

Bytes bytes_of(const in6_addr& six) {
  return std::bit_cast<Bytes>(six);
}

std::optional<Bytes> parse_host(const std::string& host, bool& is_four) {
  in_addr four{};
  in6_addr six{};
  is_four = ::inet_pton(AF_INET, host.c_str(), &four) == 1;
  if (is_four)
    return mapped(four);
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1)
    return bytes_of(six);
  return std::nullopt;
}

std::optional<Bytes> bytes_of(const sockaddr* address) {
  if (address == nullptr)
    return std::nullopt;
  if (address->sa_family == AF_INET)
    return mapped(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  if (address->sa_family == AF_INET6)
    return bytes_of(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return std::nullopt;
}

unsigned ones_of(const Bytes& mask) {
  unsigned bits = 0;
  for (const uint8_t byte : mask)
    bits += static_cast<unsigned>(std::popcount(byte));
  return bits;
}

}  // namespace

Networks::Networks() {
  networks_.push_back({mapped({htonl(INADDR_LOOPBACK)}), kMappedBits + 8});
  networks_.push_back({bytes_of(in6addr_loopback), 128});
}

Networks Networks::parse(const std::string& option, std::string_view text) {
  Networks networks{Nothing{}};
  while (true) {
    const std::string one(text.substr(0, text.find(',')));
    const size_t slash = one.find('/');
    bool is_four = false;
    const std::optional<Bytes> host = parse_host(one.substr(0, slash), is_four);
    unsigned bits = is_four ? 32 : 128;
    bool is_right = host.has_value();
    if (slash != std::string::npos) {
      unsigned given = 0;
      const char* const end = one.data() + one.size();
      const auto read = std::from_chars(one.data() + slash + 1, end, given);
      is_right = is_right && read.ec == std::errc() && read.ptr == end && given <= bits;
      bits = given;
    }
    if (!is_right)
      throw std::invalid_argument(option + ": \"" + one +
                                  "\" is no network; write 10.0.0.0/8, fd00::/8 or an address");
    networks.networks_.push_back({*host, is_four ? kMappedBits + bits : bits});
    if (text.find(',') == std::string_view::npos)
      return networks;
    text.remove_prefix(text.find(',') + 1);
  }
}

Networks Networks::of_this_machine() {
  Networks networks;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0)
    return networks;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(found, &::freeifaddrs);
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    const std::optional<Bytes> address = bytes_of(one->ifa_addr);
    const std::optional<Bytes> mask = bytes_of(one->ifa_netmask);
    if (!address || !mask || (one->ifa_flags & IFF_UP) == 0)
      continue;
    const bool is_four = one->ifa_addr->sa_family == AF_INET;
    // mapped() has put 16 ones before a mask of IPv4.
    const unsigned bits = is_four ? kMappedBits + ones_of(*mask) - 16 : ones_of(*mask);
    networks.networks_.push_back({*address, bits});
  }
  return networks;
}

bool Networks::contain(const std::string& host) const {
  bool is_four = false;
  const std::optional<Bytes> address = parse_host(host, is_four);
  return address && contain(*address);
}

bool Networks::contain(const sockaddr* address, socklen_t size) const {
  if (size < sizeof(sa_family_t) || (address->sa_family == AF_INET && size < sizeof(sockaddr_in)) ||
      (address->sa_family == AF_INET6 && size < sizeof(sockaddr_in6)))
    return false;
  const std::optional<Bytes> bytes = bytes_of(address);
  return !bytes || contain(*bytes);
}

bool Networks::contain(const Bytes& address) const {
  return std::ranges::any_of(networks_, [&](const Network& network) {
    const size_t whole = network.bits / 8;
    if (!std::equal(address.begin(), address.begin() + static_cast<ptrdiff_t>(whole),
                    network.address.begin()))
      return false;
    const unsigned rest = network.bits % 8;
    return rest == 0 || (address[whole] ^ network.address[whole]) >> (8 - rest) == 0;
  });
}

}  // namespace torch_remote
