#include "transport/address.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

constexpr std::string_view kUnix = "unix://";
constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kTls = "tls://";

constexpr std::array<std::pair<std::string_view, std::string Address::*>, 4> kOptions = {{
    {"pin", &Address::pin},
    {"cert", &Address::cert},
    {"key", &Address::key},
    {"ca", &Address::ca},
}};

[[noreturn]] void refuse(std::string_view url, std::string_view why) {
  throw std::invalid_argument(
      "'" + std::string(url) + "' is not an address: " + std::string(why) +
      ". Write unix:///path/to.sock, tcp://host:port or tls://host:port?pin=PIN.");
}

uint16_t parse_port(std::string_view url, std::string_view text) {
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || rest != end)
    refuse(url, "the port must be a number from 0 to 65535, not '" + std::string(text) + "'");
  return port;
}

std::string parse_host(std::string_view url, std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']')
    return std::string(text.substr(1, text.size() - 2));
  if (text.empty())
    refuse(url, "the host is missing");
  if (text.find_first_of(":[]/@") != std::string_view::npos)
    refuse(url, "the host '" + std::string(text) + "' is malformed (IPv6 goes in brackets, [::1])");
  return std::string(text);
}

Address parse_host_and_port(std::string_view url, std::string_view rest, const char* scheme) {
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || rest.ends_with(']'))
    refuse(url, "the port is missing");
  Address address;
  address.scheme = scheme;
  address.host = parse_host(url, rest.substr(0, colon));
  address.port = parse_port(url, rest.substr(colon + 1));
  return address;
}

std::string unescape(std::string_view url, std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    if (text.front() != '%') {
      plain += text.front();
      text.remove_prefix(1);
      continue;
    }
    unsigned byte = 0;
    const char* const end = text.data() + std::min<size_t>(text.size(), 3);
    const auto [rest, error] = std::from_chars(text.data() + 1, end, byte, 16);
    if (error != std::errc() || rest != text.data() + 3 || byte == 0)
      refuse(url, "a % is followed by two hexadecimal digits that are not 00; write %25 for %");
    plain += static_cast<char>(byte);
    text.remove_prefix(3);
  }
  return plain;
}

std::string escape(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    if (c > ' ' && c < 127 && std::string_view("%&#+").find(c) == std::string_view::npos) {
      escaped += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      escaped += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return escaped;
}

void parse_option(std::string_view url, std::string_view option, Address& address) {
  const std::string_view name = option.substr(0, option.find('='));
  for (const auto& [known, member] : kOptions) {
    if (known != name)
      continue;
    if (name.size() + 1 >= option.size())
      refuse(url, "the option " + std::string(name) + "= has no value");
    address.*member = unescape(url, option.substr(name.size() + 1));
    return;
  }
  refuse(url, "there is no option '" + std::string(name) + "'; tls:// has pin, cert, key and ca");
}

Address parse_tls(std::string_view url) {
  const std::string_view rest = url.substr(kTls.size());
  const size_t mark = rest.find('?');
  Address address = parse_host_and_port(url, rest.substr(0, mark), "tls");
  std::string_view options = mark == std::string_view::npos ? "" : rest.substr(mark + 1);
  while (!options.empty()) {
    const std::string_view option = options.substr(0, options.find('&'));
    parse_option(url, option, address);
    options.remove_prefix(std::min(options.size(), option.size() + 1));
  }
  return address;
}

Address parse_unix(std::string_view url) {
  Address address;
  address.scheme = "unix";
  address.path = url.substr(kUnix.size());
  if (!address.path.starts_with('/'))
    refuse(url, "the path of a Unix socket must be absolute");
  if (address.path.find('\0') != std::string::npos)
    refuse(url, "the path has a zero byte in it");
  return address;
}

template <typename Sockaddr>
SocketAddress from(const Sockaddr& address) {
  return {reinterpret_cast<const sockaddr*>(&address), sizeof address};
}

}  // namespace

bool operator==(const Address& a, const Address& b) {
  return to_string(a) == to_string(b);
}

Address parse_address(std::string_view url) {
  if (url.starts_with(kUnix))
    return parse_unix(url);
  if (url.starts_with(kTcp))
    return parse_host_and_port(url, url.substr(kTcp.size()), "tcp");
  if (url.starts_with(kTls))
    return parse_tls(url);
  refuse(url, "it starts with none of unix://, tcp:// and tls://");
}

std::string short_name(const Address& address) {
  if (address.scheme == "unix")
    return std::string(kUnix) + address.path;
  const bool is_v6 = address.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + address.host + "]" : address.host;
  return address.scheme + "://" + host + ":" + std::to_string(address.port);
}

std::string to_string(const Address& address) {
  std::string url = short_name(address);
  char before = '?';
  for (const auto& [name, member] : kOptions) {
    if (!(address.*member).empty()) {
      url += before + std::string(name) + "=" + escape(address.*member);
      before = '&';
    }
  }
  return url;
}

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
