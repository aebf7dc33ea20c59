#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "client/operators/operator_table.h"

namespace torch_remote::client {

Special special_of(const c10::OperatorName& operation);

// What happens to a call: the table's answer, else PyTorch's dispatch table's. Never kUsual.
Route route_of(const c10::OperatorHandle& operation, const Special& special);

// Whether one of the types contains `type`: "Tensor", "Device".
bool mentions(const std::vector<c10::Argument>& arguments, std::string_view type);

}  // namespace torch_remote::client
