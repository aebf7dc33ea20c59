#include <ATen/native/RangeUtils.h>

#include "client/shapes/shapes.h"

// Most factories call their `out=` form with an empty tensor. These functions tell its final size.

namespace torch_remote::client::shapes {
namespace {

// `out` has this many elements already, so it is not resized.
bool keeps(const at::Tensor& out, int64_t count, Outputs& outputs) {
  if (out.numel() != count)
    return false;
  outputs.push_back(fresh(out.scalar_type(), out.sizes().vec(), out.strides().vec()));
  return true;
}

// Declines if `out` has another size already: PyTorch then prints a warning.
bool sized(const at::Tensor& out, Sizes sizes, Outputs& outputs) {
  if (out.numel() > 0 && !out.sizes().equals(sizes))
    return false;
  outputs.push_back(contiguous(out.scalar_type(), std::move(sizes)));
  return true;
}

bool range(const at::Tensor& out, const at::Scalar& start, const at::Scalar& end,
           const at::Scalar& step, Outputs& outputs) {
  const bool is_number = at::isIntegralType(out.scalar_type(), /*includeBool=*/false) ||
                         at::isFloatingType(out.scalar_type());
  if (!is_number || start.isComplex() || end.isComplex() || step.isComplex())
    return false;
  const int64_t size = out.scalar_type() == at::kLong
                           ? at::native::compute_arange_size<int64_t>(start, end, step)
                           : at::native::compute_arange_size<double>(start, end, step);
  return keeps(out, size, outputs) || sized(out, {size}, outputs);
}

// (start, end, step, *, out)
bool arange(Arguments arguments, Outputs& outputs) {
  return range(tensor(arguments, 3), arguments[0].toScalar(), arguments[1].toScalar(),
               arguments[2].toScalar(), outputs);
}

// (end, *, out)
bool arange_to(Arguments arguments, Outputs& outputs) {
  return range(tensor(arguments, 1), 0, arguments[0].toScalar(), 1, outputs);
}

// (start, end, steps, *, out)
bool linspace(Arguments arguments, Outputs& outputs) {
  const int64_t steps = arguments[2].toInt();
  const at::Tensor& out = tensor(arguments, 3);
  return steps >= 0 && (keeps(out, steps, outputs) || sized(out, {steps}, outputs));
}

// (n, m, *, out)
bool eye(Arguments arguments, Outputs& outputs) {
  const int64_t rows = arguments[0].toInt();
  const int64_t columns = arguments[1].toInt();
  return rows >= 0 && columns >= 0 && sized(tensor(arguments, 2), {rows, columns}, outputs);
}

// (n, *, generator, out). Declines other dtypes, which may be too small for n.
bool randperm(Arguments arguments, Outputs& outputs) {
  const int64_t count = arguments[0].toInt();
  const at::Tensor& out = tensor(arguments, 2);
  return count >= 0 && out.scalar_type() == at::kLong && sized(out, {count}, outputs);
}

}  // namespace

Table factory_table() {
  return {
      {"aten::arange.start_out", arange},         {"aten::arange.out", arange_to},
      {"aten::linspace.out", linspace},           {"aten::eye.m_out", eye},
      {"aten::randperm.generator_out", randperm},
  };
}

}  // namespace torch_remote::client::shapes
