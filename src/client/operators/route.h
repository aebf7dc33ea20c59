#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "client/operators/operator_table.h"

namespace torch_remote::client {

// All that the table says of an operator.
Special special_of(const c10::OperatorName& operation);

// What happens to a call: what the table says, else what follows from PyTorch's dispatch table.
// Never kUsual.
Route route_of(const c10::OperatorHandle& operation, const Special& special);

// Whether a type among these mentions it: "Tensor", "Device".
bool mentions(const std::vector<c10::Argument>& arguments, std::string_view type);

}  // namespace torch_remote::client
