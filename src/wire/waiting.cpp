#include "wire/waiting.h"

#include <algorithm>

#include "base/error.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {

WaitingBlock waiting_block() {
  constexpr std::byte kWaiting{3};
  WaitingBlock block{};
  std::ranges::copy(encode_block_head(2), block.begin());
  block[4] = static_cast<std::byte>(Tag::kWelcome);
  block[5] = kWaiting;
  return block;
}

bool holds_hello(std::span<const std::byte> received) {
  BlockHead head;
  if (received.size() < head.size())
    return false;
  std::ranges::copy(received.first(head.size()), head.begin());
  const uint64_t length = decode_block_head(head);
  check_limit("bytes of a handshake", kPreambleBytes + head.size() + length, kMaxHandshakeBytes);
  const auto body = received.subspan(head.size());
  if (!body.empty() && body[0] != static_cast<std::byte>(Tag::kHello))
    throw ProtocolError("expected HELLO, got tag " +
                        std::to_string(std::to_integer<unsigned>(body[0])));
  if (body.size() < length)
    return false;
  static_cast<void>(decode_hello(body.first(length)));
  return true;
}

}  // namespace torch_remote::wire
