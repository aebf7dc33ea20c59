#pragma once

#include <cstdint>
#include <string_view>

namespace torch_remote::server {

enum class OperatorClass : uint8_t {
  kUnlisted,  // nobody has read it: refused
  kRuns,
  kTrusts,  // runs, and trusts what it is given
  kRefused,
};

struct Listed {
  OperatorClass kind = OperatorClass::kUnlisted;
  std::string_view reason;  // why it is refused
};

// What operator_list.txt says about an operator of `aten`: "aten::add.Tensor". The list is compiled
// in. Thread-safe.
Listed find_listed(std::string_view name);

}  // namespace torch_remote::server
