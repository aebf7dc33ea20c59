#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "marshal/operator_table.h"

namespace torch_remote::marshal {

// What a client does with a call: the table's answer, else that of PyTorch's dispatch table, which
// a client and a server with one version of torch have alike. Never kUsual.
Route route_of(const c10::OperatorHandle& operation, const OperatorRules& rules);

// Whether PyTorch has a composition for every device.
bool is_composed(const c10::OperatorHandle& operation);
// Whether it returns a view of an argument.
bool returns_view(const c10::FunctionSchema& schema);
// Whether one of the types contains `type`: "Tensor", "Device".
bool mentions(const std::vector<c10::Argument>& arguments, std::string_view type);

}  // namespace torch_remote::marshal
