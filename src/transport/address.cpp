#include "transport/address.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <utility>

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

}  // namespace torch_remote::transport
