#pragma once

// Our own shape functions, for operators whose Meta kernel is Python (slow) or wrong. Each answers only what
// holds exactly, sizes, strides and dtype, for a CPU server and for a CUDA server, and returns false for the rest:
// then comes PyTorch's Meta or, for operators with kAsksServer (operator_table.cpp), the server.
// It returns false for calls that are wrong too, so that PyTorch's own words reach the user.

#include <string_view>
#include <utility>
#include <vector>

#include "client/operators/operator.h"

namespace torch_remote::client::shapes {

using Arguments = c10::ArrayRef<c10::IValue>;
using Outputs = std::vector<wire::Output>;
using Sizes = std::vector<int64_t>;
using Table = std::vector<std::pair<std::string_view, ShapeFunction>>;

// One for each file.
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

// Of a _foreach_ operator: each list as long as the first, each tensor of the size and floating dtype of the one that it
// goes with, no complex numbers.
bool lists_agree(Arguments arguments);

inline const at::Tensor& tensor(Arguments arguments, size_t index) {
  return arguments[index].toTensor();
}

inline Sizes integers(const c10::IValue& value) {
  return value.toIntVector();
}

// Undefined where the argument is None.
inline at::Tensor optional_tensor(Arguments arguments, size_t index) {
  return arguments[index].isNone() ? at::Tensor() : arguments[index].toTensor();
}

wire::Output fresh(at::ScalarType dtype, Sizes sizes, Sizes strides);
wire::Output contiguous(at::ScalarType dtype, Sizes sizes);
// What empty_like gives.
wire::Output like(const at::Tensor& tensor);
// What TensorIterator gives for one operand that is_plain.
wire::Output elementwise(const at::Tensor& tensor);

// What TensorIterator makes of these operands, whatever their strides, when none of them is cast on the way: one
// dtype, conditions and tensors without dimensions aside. Throws what it throws where they do not broadcast.
wire::Output iterated(at::ScalarType dtype, c10::ArrayRef<at::Tensor> operands);
wire::Output scalar(at::ScalarType dtype);

// Strided, without conj and neg bits.
bool is_strided(const at::Tensor& tensor);
// Strided, dense, without conj and neg bits.
bool is_plain(const at::Tensor& tensor);
// Plain, and its strides are those of a new tensor of its size, also where a size is 1.
bool is_standard(const at::Tensor& tensor);
// `contiguous()` of it is_standard.
bool becomes_standard(const at::Tensor& tensor);
// is_standard in channels_last, and in nothing else.
bool is_channels_last(const at::Tensor& tensor);
// Plain, and `like` and `elementwise` give it the same strides.
bool is_settled(const at::Tensor& tensor);
bool is_full_float(const at::Tensor& tensor);
// Strided, of one floating dtype.
bool are_alike(const at::Tensor& a, const at::Tensor& b);

// Undefined, or of this dtype and size with standard strides.
bool fits(const at::Tensor& tensor, at::ScalarType dtype, c10::IntArrayRef sizes);

bool are_broadcastable(c10::IntArrayRef a, c10::IntArrayRef b);
// Whether the smaller one broadcasts without changing the larger one's size.
bool expands_to(c10::IntArrayRef smaller, c10::IntArrayRef larger);

// A dimension counted from either end; -1 when there is none.
int64_t wrap_dim(int64_t dim, int64_t count);

}  // namespace torch_remote::client::shapes
