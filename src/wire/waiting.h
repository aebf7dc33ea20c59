#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/handshake.h"

namespace torch_remote::wire {

// A listener that has no process ready for a new client tells it from time to time that it waits,
// if the client has said that it understands that: by waiting_block(), in the clear also on tls://,
// before anything else that it sends. Nobody proves it, and it only lengthens the client's wait.

// Bits of Preamble::route of a new session. Servers ignore those that they do not know.
constexpr uint64_t kAwaitsProcess = 1;

// block := 2:u32 tag:u8 3:u8                a WELCOME; 3 comes after the values of Answer
//
// Begins as neither a record of TLS nor any other block of a handshake does.
using WaitingBlock = std::array<std::byte, sizeof(BlockHead) + 2>;
WaitingBlock waiting_block();

// Whether what a new client has sent after its preamble begins with a whole HELLO block. Throws
// ProtocolError when it never will: another tag, a wrong body, or more bytes than a handshake has.
bool holds_hello(std::span<const std::byte> received);

}  // namespace torch_remote::wire
