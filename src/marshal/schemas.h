#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wire/operators.h"

namespace torch_remote::marshal {

constexpr std::string_view kAten = "aten::";

// The schemas of this torch's `aten` operators, as PyTorch prints them, sorted.
std::vector<std::string> aten_schemas();

// Computed once, so operators that Python registers later are not in it.
const wire::Digest& aten_digest();

}  // namespace torch_remote::marshal
