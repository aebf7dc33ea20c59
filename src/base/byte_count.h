#pragma once

#include <cstdint>
#include <string_view>

namespace torch_remote {

// Reads a whole number with a unit, such as "500MiB" or "8GB". Throws std::invalid_argument with a
// message for the user, which begins with `name` (the option or variable that was set).
uint64_t parse_bytes(std::string_view name, std::string_view text);

}  // namespace torch_remote
