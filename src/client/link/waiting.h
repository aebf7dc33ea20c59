#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "transport/stream.h"

namespace torch_remote::client {

// How long a new client waits for a process, while the server says that it waits.
inline constexpr std::chrono::minutes kQueueTime{10};

// Reads what a listener says before TLS begins (wire/handshake.h), for TlsOptions::read_words: only
// shake_hands() and shake_hands_again() secure such a stream, on their own thread.
std::vector<std::byte> read_words(transport::Stream& bare);

}  // namespace torch_remote::client
