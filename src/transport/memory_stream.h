#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "transport/stream.h"

namespace torch_remote::transport {

inline constexpr size_t kMemoryCapacity = size_t{1} << 20;

// A connection inside this process. A write waits while its direction holds `capacity` bytes.
std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> memory_pair(
    size_t capacity = kMemoryCapacity);

}  // namespace torch_remote::transport
