#include <ATen/ExpandUtils.h>
#include <ATen/native/LinearAlgebraUtils.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

wire::Output matrices(at::ScalarType dtype, c10::IntArrayRef sizes, bool column_major) {
  const auto strides = at::native::batched_matrix_contiguous_strides(sizes, column_major);
  return fresh(dtype, sizes.vec(), Sizes(strides.begin(), strides.end()));
}

// (A, B, left, check_errors): result, LU, pivots, info. Declines complex with left=False: a CPU
// then returns a conjugated view, which PyTorch's shape code does not predict.
bool solve(Arguments arguments, Outputs& outputs) {
  const at::Tensor& a = tensor(arguments, 0);
  const at::Tensor& b = tensor(arguments, 1);
  const bool left = arguments[2].toBool();
  const auto sizes = a.sizes();
  if (a.dim() < 2 || b.dim() < 1 || b.scalar_type() != a.scalar_type() ||
      !(is_full_float(a) || (a.is_complex() && left)))
    return false;
  const auto column = sizes.slice(0, sizes.size() - 1);
  const auto batch = sizes.slice(0, sizes.size() - 2);
  const bool is_vector = b.dim() == 1 || b.sizes().equals(column);
  Sizes right = b.sizes().vec();
  if (is_vector)
    right.push_back(1);
  const auto matrix = c10::IntArrayRef(right).slice(right.size() - 2);
  const auto right_batch = c10::IntArrayRef(right).slice(0, right.size() - 2);
  if (sizes.back() != column.back() || matrix[left ? 0 : 1] != sizes.back() ||
      (is_vector && !left) || !are_broadcastable(right_batch, batch))
    return false;
  Sizes result = at::infer_size(right_batch, batch);
  result.insert(result.end(), matrix.begin(), is_vector ? matrix.end() - 1 : matrix.end());
  outputs.push_back(matrices(b.scalar_type(), result, left));
  outputs.push_back(matrices(a.scalar_type(), sizes, true));
  outputs.push_back(contiguous(at::kInt, column.vec()));
  outputs.push_back(contiguous(at::kInt, batch.vec()));
  return true;
}

}  // namespace

Table linalg_table() {
  return {{"aten::_linalg_solve_ex", solve}};
}

}  // namespace torch_remote::client::shapes
