#pragma once

#include <ATen/core/stack.h>

#include "client/operator.h"

namespace torch_remote::client {

// The operator without `out=`, or null.
const OperatorInfo* functional_twin(const OperatorInfo& info);

// Runs an `out=` operator as its functional twin, then resizes and fills the `out=` tensors: for those whose
// result has a size that only the server can tell.
void call_functional_twin(const OperatorInfo& info, torch::jit::Stack* stack);

}  // namespace torch_remote::client
