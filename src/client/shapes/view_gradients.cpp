#include <algorithm>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

// The gradient of a view is zeros of the viewed tensor's size with the gradient copied into them.
bool zeros(const at::Tensor& grad, Sizes sizes, Outputs& outputs) {
  if (!is_strided(grad) ||
      std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; }))
    return false;
  outputs.push_back(contiguous(grad.scalar_type(), std::move(sizes)));
  return true;
}

int64_t dim_of(const c10::IValue& dim, const Sizes& sizes) {
  return wrap_dim(dim.toInt(), static_cast<int64_t>(sizes.size()));
}

// (grad, input_sizes, dim, index)
bool select_backward(Arguments arguments, Outputs& outputs) {
  const Sizes sizes = integers(arguments[1]);
  const int64_t dim = dim_of(arguments[2], sizes);
  if (dim < 0 || wrap_dim(arguments[3].toInt(), sizes[static_cast<size_t>(dim)]) < 0)
    return false;
  Sizes selected = sizes;
  selected.erase(selected.begin() + dim);
  return expands_to(tensor(arguments, 0).sizes(), selected) &&
         zeros(tensor(arguments, 0), sizes, outputs);
}

// An index counted from either end, clamped to the size.
int64_t clamp_place(int64_t place, int64_t size) {
  return std::clamp<int64_t>(place < 0 ? place + size : place, 0, size);
}

// (grad, input_sizes, dim, start, end, step)
bool slice_backward(Arguments arguments, Outputs& outputs) {
  const Sizes sizes = integers(arguments[1]);
  const int64_t dim = dim_of(arguments[2], sizes);
  const int64_t step = arguments[5].toInt();
  if (dim < 0 || step <= 0)
    return false;
  Sizes slice = sizes;
  int64_t& size = slice[static_cast<size_t>(dim)];
  const int64_t start = clamp_place(arguments[3].toInt(), size);
  const int64_t end = std::max(start, clamp_place(arguments[4].toInt(), size));
  size = (end - start + step - 1) / step;
  return expands_to(tensor(arguments, 0).sizes(), slice) &&
         zeros(tensor(arguments, 0), sizes, outputs);
}

// (grad, input_sizes, offset, dim1, dim2)
bool diagonal_backward(Arguments arguments, Outputs& outputs) {
  const Sizes sizes = integers(arguments[1]);
  const int64_t dim1 = dim_of(arguments[3], sizes);
  const int64_t dim2 = dim_of(arguments[4], sizes);
  if (dim1 < 0 || dim2 < 0 || dim1 == dim2)
    return false;
  const int64_t offset = arguments[2].toInt();
  const int64_t rows = sizes[static_cast<size_t>(dim1)] + std::min<int64_t>(offset, 0);
  const int64_t columns = sizes[static_cast<size_t>(dim2)] - std::max<int64_t>(offset, 0);
  Sizes diagonal = sizes;
  diagonal.erase(diagonal.begin() + std::max(dim1, dim2));
  diagonal.erase(diagonal.begin() + std::min(dim1, dim2));
  diagonal.push_back(std::max<int64_t>(std::min(rows, columns), 0));
  return expands_to(tensor(arguments, 0).sizes(), diagonal) &&
         zeros(tensor(arguments, 0), sizes, outputs);
}

// (grad, input_sizes, dim, size, step)
bool unfold_backward(Arguments arguments, Outputs& outputs) {
  const Sizes sizes = integers(arguments[1]);
  const int64_t dim = dim_of(arguments[2], sizes);
  const int64_t step = arguments[4].toInt();
  if (dim < 0 || step <= 0)
    return false;
  Sizes unfolded = sizes;
  int64_t& size = unfolded[static_cast<size_t>(dim)];
  const int64_t width = arguments[3].toInt();
  if (width < 0 || width > size)
    return false;
  size = (size - width) / step + 1;
  unfolded.push_back(width);
  return tensor(arguments, 0).sizes().equals(unfolded) &&
         zeros(tensor(arguments, 0), sizes, outputs);
}

}  // namespace

Table view_gradient_table() {
  return {
      {"aten::select_backward", select_backward},
      {"aten::slice_backward", slice_backward},
      {"aten::diagonal_backward", diagonal_backward},
      {"aten::unfold_backward", unfold_backward},
  };
}

}  // namespace torch_remote::client::shapes
