#pragma once

#include <chrono>
#include <string_view>

namespace torch_remote {

// A whole number and a unit, as in "250ms", "30s", "10m" or "2h"; 0 needs none. Throws std::invalid_argument with
// a sentence for the user that begins with `name`: the option or variable that has the text.
std::chrono::milliseconds parse_duration(std::string_view name, std::string_view text);

// What the environment variable says; `otherwise` where it is not set, or empty.
std::chrono::milliseconds duration_from_environment(const char* variable,
                                                    std::chrono::milliseconds otherwise);

}  // namespace torch_remote
