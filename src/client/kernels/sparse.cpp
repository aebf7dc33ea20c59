// A sparse tensor on a remote device is PyTorch's own sparse tensor, whose indices and values are
// strided remote tensors. What only takes it apart or puts it together runs here; everything else
// is sent, with the parts in its key.

#include "marshal/sparse.h"

#include <torch/library.h>

#include "client/call/dispatch.h"
#include "client/kernels/boxed.h"
#include "client/kernels/composite.h"
#include "client/kernels/table.h"
#include "marshal/operator_table.h"
#include "marshal/route.h"

namespace torch_remote::client::kernels {
namespace {

using c10::DispatchKey;

// Whether the values of `dense.sparse_mask(mask)` are elements of `dense` as they are.
bool is_plain_pick(const at::Tensor& dense, const at::Tensor& mask) {
  return dense.layout() == at::kStrided && mask.is_sparse() && mask.is_coalesced() &&
         dense.device() == mask.device() && dense.sizes() == mask.sizes() &&
         dense.scalar_type() == mask.scalar_type() && mask.sparse_dim() > 0 && mask._nnz() > 0;
}

at::Tensor pick(const at::Tensor& dense, const at::Tensor& mask) {
  const at::Tensor indices = mask._indices();
  c10::List<std::optional<at::Tensor>> rows;
  for (const at::Tensor& row : indices.unbind(0))
    rows.push_back(row);
  return marshal::join_parts(marshal::sparse_spec_of(mask), {indices.clone(), dense.index(rows)});
}

// Picks the elements of a dense tensor at the indices of a mask. Does not wait where the mask is a
// coalesced COO tensor of the same dtype, as in SparseAdam. A boxed kernel.
void sparse_mask(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const at::Tensor dense = torch::jit::peek(*stack, 0, 2).toTensor();
  const at::Tensor mask = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!is_plain_pick(dense, mask))
    return dispatch(operation, stack);
  torch::jit::drop(*stack, 2);
  stack->push_back(pick(dense, mask));
}

// Runs PyTorch's kernel on remote tensors, which handles their parts by other operators.
template <DispatchKey key>
void handle_parts(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  run_kernel_of(key, operation, stack);
}

// Views of parts are made here too: indices, values, crow_indices, …
bool handles_parts(const c10::OperatorHandle& operation, marshal::Trait trait) {
  return marshal::returns_view(operation.schema()) ||
         marshal::rules_of(operation.operator_name()).has(trait);
}

}  // namespace

void register_coo(torch::Library& library, const c10::OperatorHandle& operation, const char* name) {
  if (operation.schema().name() == "aten::sparse_mask")
    boxed<&sparse_mask>(library, name);
  else if (handles_parts(operation, marshal::kHandlesCooParts))
    boxed<&handle_parts<DispatchKey::SparseCPU>>(library, name);
  else
    boxed<&dispatch>(library, name);
}

void register_compressed(torch::Library& library, const c10::OperatorHandle& operation,
                         const char* name) {
  if (handles_parts(operation, marshal::kHandlesCompressedParts))
    boxed<&handle_parts<DispatchKey::SparseCsrCPU>>(library, name);
  else
    boxed<&dispatch>(library, name);
}

void embedding_bag_backward(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const int index = *operation.schema().argumentIndexWithName("sparse");
  if (torch::jit::peek(*stack, index, count).toBool())
    return run_kernel_of(DispatchKey::CPU, operation, stack);
  dispatch(operation, stack);
}

}  // namespace torch_remote::client::kernels
