#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace torch_remote::server {

enum class OperatorClass : uint8_t {
  kUnlisted,   // not in the list, so nobody has checked its kernels: refused
  kRuns,       // its kernels check their arguments
  kUnchecked,  // runs, but its kernels do not check all of their arguments
  kRefused,
};

struct Listed {
  OperatorClass kind = OperatorClass::kUnlisted;
  std::string_view reason;  // why it is refused
};

// What operator_list.txt says about an operator of `aten`: "aten::add.Tensor". The list is compiled
// in. Thread-safe.
Listed find_listed(std::string_view name);

// The lines of operator_list.txt. src/CMakeLists.txt writes the .cpp file.
std::span<const std::string_view> operator_lines();

}  // namespace torch_remote::server
