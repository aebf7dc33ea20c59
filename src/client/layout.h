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

// The same for a call whose `device` is remote, below BackendSelect; another goes on to its kernel.
void refuse_remote_device(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

// The same for a backward operator whose `sparse` is true; another is sent.
void refuse_sparse_gradient(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client
