#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wire/operators.h"

namespace torch_remote::marshal {

constexpr std::string_view kAten = "aten::";

// The schemas of this torch's operators in `aten`, as PyTorch prints them, sorted.
std::vector<std::string> aten_schemas();

// Their digest, worked out once. Operators that Python adds later do not count.
const wire::Digest& aten_digest();

}  // namespace torch_remote::marshal
