#include <algorithm>

#include <ATen/ExpandUtils.h>

#include "client/kernels/server_branch.h"
#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool relu(Arguments arguments, Outputs& outputs) {
  if (!is_plain(tensor(arguments, 0)))
    return false;
  outputs.push_back(elementwise(tensor(arguments, 0)));
  return true;
}

bool abs(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_plain(input) || input.scalar_type() == at::kBool)
    return false;
  outputs.push_back(input.is_complex() ? fresh(c10::toRealValueType(input.scalar_type()),
                                               input.sizes().vec(), input.strides().vec())
                                       : elementwise(input));
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

// The CPU's kernel keeps a buffer for the backward pass; CUDA's has an empty one, which Meta does not know.
bool log_sigmoid_forward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_standard(input) || !at::isFloatingType(input.scalar_type()))
    return false;
  outputs.push_back(like(input));
  outputs.push_back(kernels::is_on_cpu_server(input) ? like(input)
                                                     : contiguous(input.scalar_type(), {0}));
  return true;
}

bool clone(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const auto format =
      arguments[1].isNone() ? at::MemoryFormat::Preserve : arguments[1].toMemoryFormat();
  if (input.is_conj() || input.is_neg() || input.layout() != at::kStrided)
    return false;
  if (format == at::MemoryFormat::Contiguous) {
    outputs.push_back(contiguous(input.scalar_type(), input.sizes().vec()));
    return true;
  }
  if (format != at::MemoryFormat::Preserve)
    return false;
  outputs.push_back(like(input));
  return true;
}

bool are_broadcastable(c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const int64_t x = a[a.size() - i];
    const int64_t y = b[b.size() - i];
    if (x != y && x != 1 && y != 1)
      return false;
  }
  return true;
}

// A contiguous clone of the input, broadcast against the mask, and then filled.
bool masked_fill(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& mask = tensor(arguments, 1);
  if (mask.scalar_type() != at::kBool || !are_broadcastable(input.sizes(), mask.sizes()))
    return false;
  if (arguments[2].isTensor() && arguments[2].toTensor().dim() != 0)
    return false;
  outputs.push_back(contiguous(input.scalar_type(), at::infer_size(input.sizes(), mask.sizes())));
  return true;
}

bool where(Arguments arguments, Outputs& outputs) {
  const at::Tensor& condition = tensor(arguments, 0);
  const at::Tensor& a = tensor(arguments, 1);
  const at::Tensor& b = tensor(arguments, 2);
  if (condition.scalar_type() != at::kBool || !is_standard(condition) || !is_standard(a))
    return false;
  if (!a.sizes().equals(condition.sizes()) || !b.defined() || !fits(b, a.scalar_type(), a.sizes()))
    return false;
  outputs.push_back(like(a));
  return true;
}

bool flip(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_plain(input))
    return false;
  uint64_t seen = 0;
  for (const int64_t dim : integers(arguments[1])) {
    const int64_t at = wrap_dim(dim, input.dim());
    if (at < 0 || (seen >> at & 1) != 0)
      return false;
    seen |= uint64_t{1} << at;
  }
  outputs.push_back(like(input));
  return true;
}

// (input, target, weight, pos_weight, reduction)
bool bce_with_logits(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& target = tensor(arguments, 1);
  if (!is_standard(input) || !at::isFloatingType(input.scalar_type()))
    return false;
  if (!fits(target, input.scalar_type(), input.sizes()))
    return false;
  if (optional_tensor(arguments, 2).defined() || optional_tensor(arguments, 3).defined())
    return false;
  const bool is_reduced = arguments[4].toInt() != 0;
  outputs.push_back(contiguous(input.scalar_type(), is_reduced ? Sizes{} : input.sizes().vec()));
  return true;
}

}  // namespace

Table elementwise_table() {
  return {
      {"aten::relu", relu},
      {"aten::abs", abs},
      {"aten::native_dropout", native_dropout},
      {"aten::log_sigmoid_forward", log_sigmoid_forward},
      {"aten::clone", clone},
      {"aten::masked_fill.Scalar", masked_fill},
      {"aten::masked_fill.Tensor", masked_fill},
      {"aten::where.self", where},
      {"aten::flip", flip},
      {"aten::binary_cross_entropy_with_logits", bce_with_logits},
  };
}

}  // namespace torch_remote::client::shapes
