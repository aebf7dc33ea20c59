#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace torch_remote::client::kernels {

// Runs PyTorch's kernel for `key` on remote tensors, on their device. Only for kernels that handle
// tensors by other operators and do not read their memory.
void run_kernel_of(c10::DispatchKey key, const c10::OperatorHandle& operation,
                   torch::jit::Stack* stack);

// Registers a kernel of ours under the operator's name.
using Kernel = void (*)(torch::Library& library, const char* name);

struct KernelRow {
  const char* name;  // as in marshal/operator_table.h
  Kernel kernel;
};

// Kernels as functions that do so.
template <auto function>
void unboxed(torch::Library& library, const char* name) {
  library.impl(name, function);
}

template <auto function>
void boxed(torch::Library& library, const char* name) {
  library.impl(name, torch::CppFunction::makeFromBoxedFunction<function>());
}

// Raises NotImplementedError and says what to do instead. A boxed kernel.
void refuse_layout(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// The same for an operator whose composition would read memory that is on the server.
void refuse_memory(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// The same for an operator that strided nested tensors do not have.
void refuse_nested(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// Refuses calls with a remote `device`, below BackendSelect. Others go on to their kernel.
void refuse_remote_device(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

}  // namespace torch_remote::client::kernels
