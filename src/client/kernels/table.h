#pragma once

#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

namespace torch {
class Library;
}

namespace torch_remote::client::kernels {

// Registers a kernel of ours under the operator's name.
using Kernel = void (*)(torch::Library& library, const char* name);

struct KernelRow {
  const char* name;  // as in marshal/operator_table.h
  Kernel kernel;
};

c10::ArrayRef<KernelRow> kernel_rows();

// The kernel for dense tensors, if we have one. Null: dispatch() or PyTorch's composition.
Kernel find_kernel(const c10::OperatorName& operation);

}  // namespace torch_remote::client::kernels
