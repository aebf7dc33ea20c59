#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "client/operators/operator.h"

namespace torch_remote::client {

// The boxed kernel of PrivateUse1 for every operator but views, factories and copies: its fallback,
// and registered for each operator that PyTorch would decompose on the client.
void dispatch(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client
