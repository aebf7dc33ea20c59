#pragma once

#include <cstddef>
#include <span>

namespace torch_remote::transport {

// Whether the first bytes of a client hold its whole ClientHello, in one record of TLS or in
// several. Looks at lengths and types only. Throws ProtocolError when they never will.
bool holds_client_hello(std::span<const std::byte> received);

}  // namespace torch_remote::transport
