#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_remote::client {

// Raises NotImplementedError with the way out. A boxed kernel.
void refuse_layout(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// The same for a call whose `device` is remote, below BackendSelect; another goes on to its kernel.
void refuse_remote_device(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

// The same for a backward operator whose `sparse` is true; another is sent.
void refuse_sparse_gradient(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client
