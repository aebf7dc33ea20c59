#pragma once

#include <chrono>
#include <string_view>

namespace torch_remote {

// A whole number and a unit, as in "250ms", "30s", "10m" or "2h"; 0 needs none. Throws std::invalid_argument with
// a sentence for the user.
std::chrono::milliseconds parse_duration(std::string_view text);

}  // namespace torch_remote
