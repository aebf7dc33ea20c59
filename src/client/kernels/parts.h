#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace torch_remote::client::kernels {

// Runs PyTorch's kernel for `key` on remote tensors, on their device. Only for kernels that handle
// tensors by other operators and do not read their memory.
void run_kernel_of(c10::DispatchKey key, const c10::OperatorHandle& operation,
                   torch::jit::Stack* stack);

// Registers a kernel under an operator's name, for a row of a table of kernels.
template <auto function>
void unboxed(torch::Library& library, const char* name) {
  library.impl(name, function);
}

template <auto function>
void boxed(torch::Library& library, const char* name) {
  library.impl(name, torch::CppFunction::makeFromBoxedFunction<function>());
}

}  // namespace torch_remote::client::kernels
