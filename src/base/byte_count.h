#pragma once

#include <cstdint>
#include <string_view>

namespace torch_remote {

// A whole number and a unit, as in "500MiB", "20GiB" or "8GB". Throws std::invalid_argument with a sentence for the
// user that begins with `name`: the option or variable that has the text.
uint64_t parse_bytes(std::string_view name, std::string_view text);

}  // namespace torch_remote
