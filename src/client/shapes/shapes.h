#pragma once

// Our own shape functions, for operators whose Meta kernel is Python (slow) or wrong. Each returns
// true only if sizes, strides and dtype are exact for CPU and CUDA servers. Otherwise PyTorch's
// Meta is asked or, for operators with kAsksServer (marshal/operator_table.h), the server. They
// return false for invalid calls too, so that the user gets PyTorch's own error.

#include <string_view>
#include <utility>
#include <vector>

#include "client/operators/operator.h"

namespace torch_remote::client::shapes {

using Arguments = c10::ArrayRef<c10::IValue>;
using Outputs = std::vector<wire::Output>;
using Sizes = std::vector<int64_t>;
using Table = std::vector<std::pair<std::string_view, ShapeFunction>>;

// One for each file of this folder.
Table elementwise_table();
Table activation_table();
Table normalization_table();
Table convolution_table();
Table indexing_table();
Table attention_table();
Table reduction_table();
Table loss_table();
Table view_gradient_table();
Table factory_table();
Table linalg_table();
ShapeFunction find_foreach(std::string_view name);

// From all of them. Null: we have none for this operator ("aten::relu"). register.cpp hands it to
// operators/, which is below this folder.
ShapeFunction find_shape_function(std::string_view name);

// For _foreach_ operators: all lists have the length of the first, and all tensors at one index the
// floating dtype of the first one, and its size or no dimensions.
bool lists_agree(Arguments arguments);

inline const at::Tensor& tensor(Arguments arguments, size_t index) {
  return arguments[index].toTensor();
}

inline Sizes integers(const c10::IValue& value) {
  return value.toIntVector();
}

inline at::Tensor optional_tensor(Arguments arguments, size_t index) {
  return arguments[index].isNone() ? at::Tensor() : arguments[index].toTensor();
}

wire::Output fresh(at::ScalarType dtype, Sizes sizes, Sizes strides);
wire::Output contiguous(at::ScalarType dtype, Sizes sizes);
// What empty_like makes.
wire::Output like(const at::Tensor& tensor);
// What TensorIterator makes of one operand that is_plain.
wire::Output elementwise(const at::Tensor& tensor);

// What TensorIterator makes of operands with any strides and one dtype (except conditions and
// tensors without dimensions). Throws as it does if they do not broadcast.
wire::Output iterated(at::ScalarType dtype, c10::ArrayRef<at::Tensor> operands);
wire::Output scalar(at::ScalarType dtype);

// Strided, without conj and neg bits.
bool is_strided(const at::Tensor& tensor);
// is_strided and dense.
bool is_plain(const at::Tensor& tensor);
// is_plain, with the strides of a new tensor of this size, also in dimensions of size 1.
bool is_standard(const at::Tensor& tensor);
// Whether `contiguous()` makes it is_standard.
bool becomes_standard(const at::Tensor& tensor);
// is_standard in channels_last and in no other memory format.
bool is_channels_last(const at::Tensor& tensor);
// is_plain, and `like` and `elementwise` give it the same strides.
bool is_settled(const at::Tensor& tensor);
bool is_full_float(const at::Tensor& tensor);
// Strided, of one floating dtype.
bool are_alike(const at::Tensor& a, const at::Tensor& b);

// Undefined, or of this dtype and size with standard strides.
bool fits(const at::Tensor& tensor, at::ScalarType dtype, c10::IntArrayRef sizes);

bool are_broadcastable(c10::IntArrayRef a, c10::IntArrayRef b);
// Whether `smaller` broadcasts to `larger` without changing it.
bool expands_to(c10::IntArrayRef smaller, c10::IntArrayRef larger);

// A dimension counted from either end; -1 if it does not exist.
int64_t wrap_dim(int64_t dim, int64_t count);

}  // namespace torch_remote::client::shapes
