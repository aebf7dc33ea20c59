#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace torch_remote {

// Reads a whole number with a unit, such as "500MiB" or "8GB". Throws std::invalid_argument with a
// message for the user, which begins with `name` (the option or variable that was set).
uint64_t parse_bytes(std::string_view name, std::string_view text);

// Reads a whole number with a unit, such as "250ms", "30s", "10m" or "2h"; 0 needs no unit. Throws
// like parse_bytes().
std::chrono::milliseconds parse_duration(std::string_view name, std::string_view text);

// As parse_duration() reads it, in the largest unit that gives a whole number: "90s", "2h".
std::string duration_text(std::chrono::milliseconds duration);

// `otherwise` where the variable is unset or empty.
std::chrono::milliseconds duration_from_environment(const char* variable,
                                                    std::chrono::milliseconds otherwise);

}  // namespace torch_remote
