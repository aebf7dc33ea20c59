#include "client/kernels/sparse.h"

#include <algorithm>
#include <string_view>

#include "client/call/dispatch.h"
#include "client/kernels/parts.h"
#include "marshal/operator_table.h"
#include "marshal/route.h"
#include "marshal/sparse.h"

namespace torch_remote::client::kernels {
namespace {

using c10::DispatchKey;

// Besides those that return views of parts: indices, values, crow_indices, …
constexpr const char* kOfCoo[] = {"_sparse_coo_tensor_with_dims",
                                  "_sparse_coo_tensor_with_dims_and_tensors",
                                  "sparse_dim",
                                  "_dimI",
                                  "dense_dim",
                                  "_dimV",
                                  "_nnz",
                                  "is_coalesced",
                                  "_coalesced_",
                                  "empty.memory_format",
                                  "empty_like",
                                  "clone",
                                  "copy_",
                                  "copy_sparse_to_sparse_",
                                  "sparse_resize_",
                                  "sparse_resize_and_clear_",
                                  "resize_as_sparse_",
                                  "zero_",
                                  "zeros.out",
                                  "is_pinned",
                                  "_pin_memory"};
constexpr const char* kOfCompressed[] = {
    "sparse_dim",        "dense_dim", "_nnz",         "empty.memory_format",
    "empty_like",        "clone",     "copy_",        "resize_",
    "resize_as_sparse_", "zero_",     "fill_.Scalar", "normal_",
    "select_copy.int",   "is_pinned", "_pin_memory"};

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

}  // namespace

void sparse_mask(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const at::Tensor dense = torch::jit::peek(*stack, 0, 2).toTensor();
  const at::Tensor mask = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!is_plain_pick(dense, mask))
    return dispatch(operation, stack);
  torch::jit::drop(*stack, 2);
  stack->push_back(pick(dense, mask));
}

bool handles_parts(const c10::OperatorHandle& operation, DispatchKey key) {
  if (marshal::returns_view(operation.schema()))
    return true;
  const std::string name = marshal::row_key(operation.operator_name());
  const auto is_it = [&](const char* row) { return marshal::matches(row, name); };
  return key == DispatchKey::SparseCPU
             ? std::any_of(std::begin(kOfCoo), std::end(kOfCoo), is_it)
             : std::any_of(std::begin(kOfCompressed), std::end(kOfCompressed), is_it);
}

void handle_coo_parts(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  run_kernel_of(DispatchKey::SparseCPU, operation, stack);
}

void handle_compressed_parts(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  run_kernel_of(DispatchKey::SparseCsrCPU, operation, stack);
}

void embedding_bag_backward(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const int index = *operation.schema().argumentIndexWithName("sparse");
  if (torch::jit::peek(*stack, index, count).toBool())
    return run_kernel_of(DispatchKey::CPU, operation, stack);
  dispatch(operation, stack);
}

}  // namespace torch_remote::client::kernels
