#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch {
class Library;
}

// Note [Nested tensors]
//
// A strided nested tensor on a remote device is PyTorch's own. Its buffer is a remote tensor; its
// sizes, strides and offsets are tensors of the CPU. The server does not know it: PyTorch's kernels
// for the CPU run here, and call dense operators on the buffer and on views of it. So results need
// no answer, and a batch with other lengths makes new signatures only for new lengths.
//
// That works for kernels that do not read memory: those with kHandlesNestedParts in the table of
// operators (marshal/operator_table.h). The functions below are in the place of those that do, or
// that would wait. For a call that PyTorch refuses they run its kernel, which raises before it
// reads.
namespace torch_remote::client::kernels {

// Registers what to do with nested tensors, for an operator that PyTorch has a kernel of for them.
void register_nested(torch::Library& library, const c10::OperatorHandle& operation,
                     const char* name);

// For dense arguments: runs PyTorch's kernel for the CPU, or raises its error. A boxed kernel.
void make_nested(const c10::OperatorHandle& operation, torch::jit::Stack* stack);
at::Tensor nested_from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool swaps_heads);

}  // namespace torch_remote::client::kernels
