#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

// A sparse tensor on a remote device is PyTorch's own sparse tensor, whose indices and values are
// strided remote tensors. What only takes it apart or puts it together runs here; everything else
// is sent, with the parts in its key.
namespace torch_remote::client::kernels {

// Whether PyTorch's kernel at `key` (SparseCPU or SparseCsrCPU) only handles the parts of its
// tensors, by other operators, so that it works on any device.
bool handles_parts(const c10::OperatorHandle& operation, c10::DispatchKey key);

// Runs that kernel on remote tensors. Boxed kernels.
void handle_coo_parts(const c10::OperatorHandle& operation, torch::jit::Stack* stack);
void handle_compressed_parts(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// Picks the elements of a dense tensor at the indices of a mask. Does not wait where the mask is a
// coalesced COO tensor of the same dtype, as in SparseAdam. A boxed kernel.
void sparse_mask(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// With sparse=True PyTorch's composition runs here, and makes the gradient of its parts.
void embedding_bag_backward(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace torch_remote::client::kernels
