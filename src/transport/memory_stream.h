#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "transport/stream.h"

namespace torch_remote::transport {

inline constexpr size_t kMemoryCapacity = size_t{1} << 20;

// Two ends of a connection inside this process. Each direction holds at most `capacity` bytes; a
// write beyond that waits for the reader, as with a socket.
std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> memory_pair(
    size_t capacity = kMemoryCapacity);

}  // namespace torch_remote::transport
