#pragma once

#include <cstddef>
#include <span>

namespace torch_remote::transport {

// How a record of TLS begins that is part of a handshake.
inline constexpr std::byte kHandshakeRecord{22};
inline constexpr std::byte kMajorVersion{3};

// Whether the first bytes of a client hold its whole ClientHello, in one record of TLS or in
// several. Looks at lengths and types only. Throws ProtocolError when they never will.
bool holds_client_hello(std::span<const std::byte> received);

}  // namespace torch_remote::transport
