#include "transport/address.h"

#include <charconv>
#include <stdexcept>

namespace torch_remote::transport {
namespace {

constexpr std::string_view kUnix = "unix://";
constexpr std::string_view kTcp = "tcp://";

[[noreturn]] void refuse(std::string_view url, std::string_view why) {
  throw std::invalid_argument("'" + std::string(url) + "' is not an address: " + std::string(why) +
                              ". Write unix:///path/to.sock or tcp://host:port.");
}

uint16_t parse_port(std::string_view url, std::string_view text) {
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || rest != end) {
    refuse(url, "the port must be a number from 0 to 65535, not '" + std::string(text) + "'");
  }
  return port;
}

std::string parse_host(std::string_view url, std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    return std::string(text.substr(1, text.size() - 2));
  }
  if (text.empty()) {
    refuse(url, "the host is missing");
  }
  if (text.find_first_of(":[]/@") != std::string_view::npos) {
    refuse(url, "the host '" + std::string(text) + "' is malformed (IPv6 goes in brackets, [::1])");
  }
  return std::string(text);
}

Address parse_tcp(std::string_view url) {
  const std::string_view rest = url.substr(kTcp.size());
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || rest.ends_with(']')) {
    refuse(url, "the port is missing");
  }
  Address address;
  address.scheme = "tcp";
  address.host = parse_host(url, rest.substr(0, colon));
  address.port = parse_port(url, rest.substr(colon + 1));
  return address;
}

Address parse_unix(std::string_view url) {
  Address address;
  address.scheme = "unix";
  address.path = url.substr(kUnix.size());
  if (!address.path.starts_with('/')) {
    refuse(url, "the path of a Unix socket must be absolute");
  }
  if (address.path.find('\0') != std::string::npos) {
    refuse(url, "the path has a zero byte in it");
  }
  return address;
}

}  // namespace

bool operator==(const Address& a, const Address& b) {
  return a.scheme == b.scheme && a.host == b.host && a.port == b.port && a.path == b.path;
}

Address parse_address(std::string_view url) {
  if (url.starts_with(kUnix)) {
    return parse_unix(url);
  }
  if (url.starts_with(kTcp)) {
    return parse_tcp(url);
  }
  refuse(url, "it starts with neither unix:// nor tcp://");
}

std::string to_string(const Address& address) {
  if (address.scheme == "unix") {
    return std::string(kUnix) + address.path;
  }
  const bool is_v6 = address.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + address.host + "]" : address.host;
  return std::string(kTcp) + host + ":" + std::to_string(address.port);
}

}  // namespace torch_remote::transport
