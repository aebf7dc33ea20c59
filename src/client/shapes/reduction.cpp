#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

// Sizes without the dimensions, all of them if there are none given. False: one is wrong or given twice.
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

}  // namespace

Table reduction_table() {
  return {
      {"aten::var.correction", var},           {"aten::std.correction", var},
      {"aten::var_mean.correction", var_mean}, {"aten::std_mean.correction", var_mean},
      {"aten::logsumexp", logsumexp},
  };
}

}  // namespace torch_remote::client::shapes
