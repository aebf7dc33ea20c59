#include "transport/client_hello.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

// RFC 8446, sections 4 and 5.1:
//
//   record  := 22:u8 3:u8 minor:u8 length:u16 part        big-endian
//   message := 1:u8 length:u24 raw                        in the parts of one record or more
constexpr size_t kRecordHead = 5;
constexpr size_t kMessageHead = 4;
constexpr size_t kLongestPart = 16 << 10;
constexpr std::byte kClientHello{1};

size_t number(std::span<const std::byte> bytes) {
  size_t value = 0;
  for (const std::byte byte : bytes)
    value = value << 8 | std::to_integer<size_t>(byte);
  return value;
}

void check(bool is_right) {
  if (!is_right)
    throw ProtocolError("the client does not begin with a ClientHello of TLS");
}

}  // namespace

bool holds_client_hello(std::span<const std::byte> received) {
  std::array<std::byte, kMessageHead> head{};
  size_t length = 0;  // of the message, as far as it has come
  while (true) {
    check(received.empty() || received[0] == kHandshakeRecord);
    check(received.size() < 2 || received[1] == kMajorVersion);
    if (received.size() < kRecordHead)
      return false;
    const size_t announced = number(received.subspan(3, 2));
    check(announced > 0 && announced <= kLongestPart);
    received = received.subspan(kRecordHead);
    const auto part = received.first(std::min(announced, received.size()));
    for (size_t i = 0; i < part.size() && length + i < head.size(); ++i)
      head[length + i] = part[i];
    length += part.size();
    check(length == 0 || head[0] == kClientHello);
    if (length >= head.size() && length - head.size() >= number(std::span(head).subspan(1)))
      return true;
    if (part.size() < announced)
      return false;
    received = received.subspan(announced);
  }
}

}  // namespace torch_remote::transport
