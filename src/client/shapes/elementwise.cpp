#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/MemoryFormat.h>

#include "client/memory/server_branch.h"
#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool abs(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_plain(input) || input.scalar_type() == at::kBool)
    return false;
  outputs.push_back(input.is_complex() ? fresh(c10::toRealValueType(input.scalar_type()),
                                               input.sizes().vec(), input.strides().vec())
                                       : elementwise(input));
  return true;
}

// The CPU's kernel returns a buffer for the backward pass, CUDA's an empty one, which Meta does not
// predict.
bool log_sigmoid_forward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_standard(input) || !at::isFloatingType(input.scalar_type()))
    return false;
  outputs.push_back(like(input));
  outputs.push_back(is_on_cpu_server(input) ? like(input) : contiguous(input.scalar_type(), {0}));
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
  if (format == at::MemoryFormat::ChannelsLast && input.dim() == 4) {
    outputs.push_back(fresh(input.scalar_type(), input.sizes().vec(),
                            c10::get_channels_last_strides_2d(input.sizes())));
    return true;
  }
  if (format != at::MemoryFormat::Preserve)
    return false;
  outputs.push_back(like(input));
  return true;
}

// For copy_ only: kernels::copy_ has checked the arguments.
bool copy(Arguments arguments, Outputs& outputs) {
  outputs.push_back(like(tensor(arguments, 0)));
  return true;
}

// A contiguous clone of the input, broadcast with the mask and then filled.
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

// As masked_fill, with values from a tensor.
bool masked_scatter(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& mask = tensor(arguments, 1);
  if (mask.scalar_type() != at::kBool || !are_broadcastable(input.sizes(), mask.sizes()))
    return false;
  if (tensor(arguments, 2).scalar_type() != input.scalar_type())
    return false;
  outputs.push_back(contiguous(input.scalar_type(), at::infer_size(input.sizes(), mask.sizes())));
  return true;
}

// A stand-in for `tensor` after the cast to `dtype`, which does not keep overlapping strides.
at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype)
    return tensor;
  const wire::Output cast = like(tensor);
  return at::detail::empty_strided_meta(cast.spec.sizes, cast.spec.strides, dtype);
}

bool where(Arguments arguments, Outputs& outputs) {
  const at::Tensor& condition = tensor(arguments, 0);
  const at::Tensor& a = tensor(arguments, 1);
  const at::Tensor& b = tensor(arguments, 2);
  if (condition.scalar_type() != at::kBool || !is_strided(a) || !is_strided(b))
    return false;
  const at::ScalarType dtype = at::native::result_type(at::ITensorListRef({a, b}));
  outputs.push_back(iterated(dtype, {condition, cast_to(a, dtype), cast_to(b, dtype)}));
  return true;
}

bool logical_not(Arguments arguments, Outputs& outputs) {
  if (!is_strided(tensor(arguments, 0)))
    return false;
  outputs.push_back(iterated(at::kBool, {tensor(arguments, 0)}));
  return true;
}

bool logical_binary(Arguments arguments, Outputs& outputs) {
  const at::Tensor& a = tensor(arguments, 0);
  const at::Tensor& b = tensor(arguments, 1);
  if (!is_strided(a) || !is_strided(b) || a.scalar_type() != b.scalar_type())
    return false;
  outputs.push_back(iterated(at::kBool, {a, b}));
  return true;
}

// Computed as `self != self`.
bool isnan(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_strided(input))
    return false;
  outputs.push_back(iterated(at::kBool, {input, input}));
  return true;
}

// A subtraction: refuses bool, and operands that a CPU would cast to another layout.
bool rsub_of(const at::Tensor& input, const at::Tensor& other, const at::Scalar& alpha,
             Outputs& outputs) {
  const at::ScalarType dtype = at::native::result_type(at::ITensorListRef({input, other}));
  if (!is_strided(input) || !is_strided(other) || input.scalar_type() == at::kBool ||
      other.scalar_type() == at::kBool)
    return false;
  if (input.scalar_type() != dtype && !is_plain(input))
    return false;
  if (!at::isFloatingType(dtype) && !alpha.isIntegral(/*includeBool=*/false))
    return false;
  outputs.push_back(iterated(dtype, {other, input}));
  return true;
}

// The number becomes a tensor without dimensions and is the first operand. (self, other, alpha)
bool rsub_scalar(Arguments arguments, Outputs& outputs) {
  const at::Scalar other = arguments[1].toScalar();
  if (other.isBoolean())
    return false;
  at::Tensor number = at::detail::empty_strided_meta({}, {}, other.type());
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return rsub_of(tensor(arguments, 0), number, arguments[2].toScalar(), outputs);
}

bool rsub(Arguments arguments, Outputs& outputs) {
  const at::Tensor& other = tensor(arguments, 1);
  if (other.scalar_type() != tensor(arguments, 0).scalar_type())
    return false;
  return rsub_of(tensor(arguments, 0), other, arguments[2].toScalar(), outputs);
}

// (real, imag) or (abs, angle)
bool make_complex(Arguments arguments, Outputs& outputs) {
  const at::Tensor& a = tensor(arguments, 0);
  const at::Tensor& b = tensor(arguments, 1);
  if (!are_alike(a, b) || !is_full_float(a))
    return false;
  outputs.push_back(iterated(c10::toComplexType(a.scalar_type()), {a, b}));
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

// (element, test_elements, …): PyTorch's shape code says [0], and its kernel resizes that to [].
bool isin_scalar(Arguments arguments, Outputs& outputs) {
  const auto is_sortable = [](at::ScalarType dtype) {
    return dtype != at::kBool && !at::isComplexType(dtype);
  };
  if (!is_sortable(arguments[0].toScalar().type()) ||
      !is_sortable(tensor(arguments, 1).scalar_type()))
    return false;
  outputs.push_back(scalar(at::kBool));
  return true;
}

}  // namespace

Table elementwise_table() {
  return {
      {"aten::abs", abs},
      {"aten::log_sigmoid_forward", log_sigmoid_forward},
      {"aten::clone", clone},
      {"aten::copy", copy},
      {"aten::masked_fill.Scalar", masked_fill},
      {"aten::masked_fill.Tensor", masked_fill},
      {"aten::masked_scatter", masked_scatter},
      {"aten::where.self", where},
      {"aten::flip", flip},
      {"aten::logical_not", logical_not},
      {"aten::logical_and", logical_binary},
      {"aten::logical_or", logical_binary},
      {"aten::logical_xor", logical_binary},
      {"aten::isnan", isnan},
      {"aten::isin.Scalar_Tensor", isin_scalar},
      {"aten::rsub.Scalar", rsub_scalar},
      {"aten::rsub.Tensor", rsub},
      {"aten::complex", make_complex},
      {"aten::polar", make_complex},
  };
}

}  // namespace torch_remote::client::shapes
