#pragma once

#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_remote::client {

// Sparse, nested and quantized tensors have dispatch keys and operators of their own.
bool mentions_another_layout(std::string_view name);

// The operator makes a tensor that a remote device does not hold.
bool makes_another_layout(std::string_view name);

// Raises NotImplementedError with the way out. A boxed kernel.
void refuse_layout(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client
