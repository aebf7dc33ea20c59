#pragma once

#include <string>

#include "transport/stream.h"
#include "wire/handshake.h"

namespace torch_remote::client {

// The client's side of the handshake (wire/handshake.h), on a stream that nobody else reads or writes.
// Throws ProtocolError, or ConnectionError when the server refuses.
wire::Welcome shake_hands(transport::Stream& stream, const std::string& token);

}  // namespace torch_remote::client
