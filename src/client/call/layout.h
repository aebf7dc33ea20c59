#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_remote::client {

// Raises NotImplementedError and says what to do instead. A boxed kernel.
void refuse_layout(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// The same for an operator whose composition would read memory that is on the server.
void refuse_memory(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// The same for an operator that strided nested tensors do not have.
void refuse_nested(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// Refuses calls with a remote `device`, below BackendSelect. Others go on to their kernel.
void refuse_remote_device(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

}  // namespace torch_remote::client
