#include <utility>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

// Sizes after a reduction over `dims`, or over all if none are given. False: a dim is wrong or
// repeated.
bool reduce(const at::Tensor& input, const c10::IValue& dims, bool keep, Sizes& sizes) {
  const Sizes given = dims.isNone() ? Sizes{} : integers(dims);
  uint64_t mask = given.empty() ? ~uint64_t{0} : 0;
  for (const int64_t dim : given) {
    const int64_t at = wrap_dim(dim, input.dim());
    if (at < 0 || (mask >> at & 1) != 0)
      return false;
    mask |= uint64_t{1} << at;
  }
  for (int64_t i = 0; i < input.dim(); ++i) {
    const bool is_reduced = (mask >> i & 1) != 0;
    if (!is_reduced)
      sizes.push_back(input.size(i));
    if (is_reduced && keep)
      sizes.push_back(1);
  }
  return true;
}

bool is_known(const at::Tensor& input) {
  return is_standard(input) && is_full_float(input) && input.dim() > 0 && input.numel() > 0;
}

// (self, dim, *, correction, keepdim)
bool var(Arguments arguments, Outputs& outputs) {
  Sizes sizes;
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_known(input) || !reduce(input, arguments[1], arguments[3].toBool(), sizes))
    return false;
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

bool var_mean(Arguments arguments, Outputs& outputs) {
  if (!var(arguments, outputs))
    return false;
  outputs.push_back(outputs.front());
  return true;
}

// (self, dim, keepdim)
bool logsumexp(Arguments arguments, Outputs& outputs) {
  Sizes sizes;
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_known(input) || !reduce(input, arguments[1], arguments[2].toBool(), sizes))
    return false;
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// The sum of integers is int64, unless another dtype is given.
at::ScalarType sum_dtype(const at::Tensor& input, const c10::IValue& dtype) {
  if (!dtype.isNone())
    return dtype.toScalarType();
  return at::isIntegralType(input.scalar_type(), /*includeBool=*/true) ? at::kLong
                                                                       : input.scalar_type();
}

// (self, dtype)
bool sum_all(Arguments arguments, Outputs& outputs) {
  outputs.push_back(scalar(sum_dtype(tensor(arguments, 0), arguments[1])));
  return true;
}

// (self, dim, keepdim, *, dtype). An empty list means all dimensions; PyTorch's Meta reduces none.
bool nansum(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const bool reduces_all =
      arguments[1].isNone() || integers(arguments[1]).empty() || input.dim() == 0;
  if (!reduces_all || input.is_complex())
    return false;
  const size_t kept = arguments[2].toBool() ? static_cast<size_t>(input.dim()) : 0;
  outputs.push_back(contiguous(sum_dtype(input, arguments[3]), Sizes(kept, 1)));
  return true;
}

bool mean_all(Arguments arguments, Outputs& outputs) {
  const at::ScalarType dtype = sum_dtype(tensor(arguments, 0), arguments[1]);
  if (!at::isFloatingType(dtype) && !at::isComplexType(dtype))
    return false;
  outputs.push_back(scalar(dtype));
  return true;
}

// The result is one of the elements.
bool pick(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (input.numel() == 0 || input.is_complex())
    return false;
  outputs.push_back(scalar(input.scalar_type()));
  return true;
}

bool are_all_true(Arguments arguments, Outputs& outputs) {
  if (tensor(arguments, 0).scalar_type() != at::kBool)
    return false;
  outputs.push_back(scalar(at::kBool));
  return true;
}

bool trace(Arguments arguments, Outputs& outputs) {
  if (tensor(arguments, 0).dim() != 2)
    return false;
  outputs.push_back(scalar(sum_dtype(tensor(arguments, 0), c10::IValue())));
  return true;
}

bool dot_of(Arguments arguments, Outputs& outputs, bool is_conj) {
  const at::Tensor& a = tensor(arguments, 0);
  const at::Tensor& b = tensor(arguments, 1);
  if (a.dim() != 1 || !a.sizes().equals(b.sizes()) || a.scalar_type() != b.scalar_type())
    return false;
  outputs.push_back(scalar(a.scalar_type()));
  outputs.back().spec.conj = is_conj;
  return true;
}

// The kernels accept conj views, and return one where BLAS has no function for the product.
bool dot(Arguments arguments, Outputs& outputs) {
  const bool is_conj = tensor(arguments, 0).is_conj() && tensor(arguments, 1).is_conj();
  return dot_of(arguments, outputs, is_conj);
}

bool vdot(Arguments arguments, Outputs& outputs) {
  const bool is_conj = !tensor(arguments, 0).is_conj() && tensor(arguments, 1).is_conj();
  return dot_of(arguments, outputs, is_conj);
}

bool mv(Arguments arguments, Outputs& outputs) {
  const at::Tensor& matrix = tensor(arguments, 0);
  const at::Tensor& vector = tensor(arguments, 1);
  if (matrix.dim() != 2 || vector.dim() != 1 || matrix.size(1) != vector.size(0) ||
      matrix.scalar_type() != vector.scalar_type())
    return false;
  outputs.push_back(contiguous(vector.scalar_type(), {matrix.size(0)}));
  return true;
}

}  // namespace

Table reduction_table() {
  return {
      {"aten::sum", sum_all},
      {"aten::prod", sum_all},
      {"aten::nansum", nansum},
      {"aten::mean", mean_all},
      {"aten::max", pick},
      {"aten::min", pick},
      {"aten::median", pick},
      {"aten::_is_all_true", are_all_true},
      {"aten::_is_any_true", are_all_true},
      {"aten::trace", trace},
      {"aten::dot", dot},
      {"aten::vdot", vdot},
      {"aten::mv", mv},
      {"aten::var.correction", var},
      {"aten::std.correction", var},
      {"aten::var_mean.correction", var_mean},
      {"aten::std_mean.correction", var_mean},
      {"aten::logsumexp", logsumexp},
  };
}

}  // namespace torch_remote::client::shapes
