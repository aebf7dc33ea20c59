#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "client/operators/operator.h"

namespace torch_remote::client {

// Every operator that is not a view, a factory or a copy ends here: the boxed kernel for PrivateUse1, both as
// its fallback and registered for each operator that would otherwise decompose on the client.
void dispatch(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client
