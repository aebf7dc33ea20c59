#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch {
class Library;
}

// A sparse tensor on a remote device is PyTorch's own sparse tensor, whose indices and values are
// strided remote tensors. What only takes it apart or puts it together runs here; everything else
// is sent, with the parts in its key.
namespace torch_remote::client::kernels {

// Registers what to do with sparse tensors, for an operator that PyTorch has a kernel of for them
// on the CPU: COO (SparseCPU) and the compressed layouts (SparseCsrCPU).
void register_coo(torch::Library& library, const c10::OperatorHandle& operation, const char* name);
void register_compressed(torch::Library& library, const c10::OperatorHandle& operation,
                         const char* name);

// With sparse=True PyTorch's composition runs here, and makes the gradient of its parts.
void embedding_bag_backward(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client::kernels
