#include <ATen/EmptyTensor.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool relu(Arguments arguments, Outputs& outputs) {
  if (!is_plain(tensor(arguments, 0)))
    return false;
  outputs.push_back(elementwise(tensor(arguments, 0)));
  return true;
}

// One floating input.
bool unary(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!are_alike(input, input))
    return false;
  outputs.push_back(iterated(input.scalar_type(), {input}));
  return true;
}

// The kernel writes into empty_like of the first argument, which is floating.
bool like_first(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!are_alike(input, input))
    return false;
  outputs.push_back(like(input));
  return true;
}

// (grad_output, self, …)
bool unary_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& grad = tensor(arguments, 0);
  const at::Tensor& input = tensor(arguments, 1);
  if (!are_alike(grad, input))
    return false;
  outputs.push_back(iterated(input.scalar_type(), {grad, input}));
  return true;
}

// (self, weight)
bool prelu(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& weight = tensor(arguments, 1);
  if (!are_alike(input, weight) || !expands_to(weight.sizes(), input.sizes()))
    return false;
  outputs.push_back(like(input));
  return true;
}

// (grad_output, self, weight)
bool prelu_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& grad = tensor(arguments, 0);
  const at::Tensor& input = tensor(arguments, 1);
  const at::Tensor& weight = tensor(arguments, 2);
  if (!are_alike(grad, input) || !are_alike(input, weight))
    return false;
  outputs.push_back(iterated(input.scalar_type(), {input, weight, grad}));
  outputs.push_back(outputs.front());
  return true;
}

// (grad_output, self, dim)
bool glu_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  const int64_t dim = wrap_dim(arguments[2].toInt(), input.dim());
  if (dim < 0 || !is_standard(input) || input.size(dim) % 2 != 0 ||
      tensor(arguments, 0).scalar_type() != input.scalar_type())
    return false;
  Sizes half = input.sizes().vec();
  half[static_cast<size_t>(dim)] /= 2;
  if (!tensor(arguments, 0).sizes().equals(half))
    return false;
  outputs.push_back(like(input));
  return true;
}

bool native_dropout(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_settled(input) || arguments[2].isNone() || !arguments[2].toBool())
    return false;
  outputs.push_back(like(input));
  outputs.push_back(fresh(at::kBool, input.sizes().vec(), input.strides().vec()));
  return true;
}

bool bernoulli(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!are_alike(input, input))
    return false;
  outputs.push_back(contiguous(input.scalar_type(), input.sizes().vec()));
  return true;
}

// softmax, except that a row of nothing but -inf gives zeros. (self, dim, dtype)
bool safe_softmax(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const int64_t dim = wrap_dim(arguments[1].toInt(), input.dim());
  if (dim < 0 || !is_standard(input) || !are_alike(input, input) || !arguments[2].isNone())
    return false;
  Sizes rows = input.sizes().vec();
  rows[static_cast<size_t>(dim)] = 1;
  const at::Tensor mask =
      at::detail::empty_strided_meta(rows, wire::contiguous_strides(rows), at::kBool);
  const at::Tensor zero = at::detail::empty_strided_meta({}, {}, input.scalar_type());
  outputs.push_back(iterated(input.scalar_type(), {mask, zero, input}));
  return true;
}

}  // namespace

Table activation_table() {
  return {
      {"aten::relu", relu},
      {"aten::native_dropout", native_dropout},
      {"aten::celu", unary},
      {"aten::hardswish", unary},
      {"aten::hardtanh", like_first},
      {"aten::nan_to_num", like_first},
      {"aten::hardswish_backward", unary_backward},
      {"aten::hardtanh_backward", unary_backward},
      {"aten::mish_backward", unary_backward},
      {"aten::_prelu_kernel", prelu},
      {"aten::_prelu_kernel_backward", prelu_backward},
      {"aten::glu_backward", glu_backward},
      {"aten::bernoulli", bernoulli},
      {"aten::_safe_softmax", safe_softmax},
  };
}

}  // namespace torch_remote::client::shapes
