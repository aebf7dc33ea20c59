#pragma once

#include <ATen/core/stack.h>

#include "client/operator.h"

namespace torch_remote::client {

// The operator without `out=`, or null.
const OperatorInfo* functional_twin(const OperatorInfo& info);

void call_functional_twin(const OperatorInfo& info, torch::jit::Stack* stack);

}  // namespace torch_remote::client
