#include "server/operators/argument_checks.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include "marshal/schemas.h"

namespace torch_remote::server {
namespace {

constexpr std::string_view kScales = "scales";  // scales, scales_d, scales_h, scales_w

const c10::IValue* find(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                        const char* name) {
  const auto index = schema.argumentIndexWithName(name);
  if (!index.has_value() || static_cast<size_t>(*index) >= stack.size())
    return nullptr;
  return &stack[static_cast<size_t>(*index)];
}

// Sizes of the image that is scaled, or that a gradient is for. Empty if the kernel will complain.
std::vector<int64_t> input_sizes(const c10::FunctionSchema& schema,
                                 const torch::jit::Stack& stack) {
  if (const c10::IValue* const sizes = find(schema, stack, "input_size"))
    return sizes->isIntList() ? sizes->toIntVector() : std::vector<int64_t>();
  for (const char* const name : {"self", "input"})
    if (const c10::IValue* const input = find(schema, stack, name); input && input->isTensor())
      return input->toTensor().sizes().vec();
  return {};
}

// A kernel reads the input at (place in the output) / scale. So a scale that is given beside the
// output's size must not lead beyond the input: output <= input * scale, as in
// torch.nn.functional.interpolate(), which computes sizes in 32 bits while it traces. Kernels
// ignore a scale that is not above 0.
//
// An antialiasing kernel always reads the first input of the last output, which it finds at
// (output - 0.5) / scale - 0.5 or before: with half an output too many that is still inside.
void check_scales(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  constexpr double kRounding = 1e-6;
  constexpr double kMostTooMany = 0.5;
  const c10::IValue* const told = find(schema, stack, "output_size");
  const std::vector<int64_t> input = input_sizes(schema, stack);
  if (told == nullptr || !told->isIntList())
    return;
  const std::vector<int64_t> output = told->toIntVector();
  if (input.size() < output.size())
    return;
  size_t dimension = 0;
  for (size_t i = 0; i < stack.size() && dimension < output.size(); ++i) {
    if (!schema.arguments()[i].name().starts_with(kScales))
      continue;
    const int64_t to = output[dimension];
    const int64_t from = input[input.size() - output.size() + dimension];
    ++dimension;
    if (!stack[i].isDouble() || stack[i].toDouble() <= 0)
      continue;
    const double scale = stack[i].toDouble();
    const double most = static_cast<double>(from) * scale;
    const double rounding = std::min(most * kRounding, kMostTooMany);
    TORCH_CHECK_VALUE(static_cast<double>(to) <= most + rounding, schema.name(), ": a scale of ",
                      scale, " does not make ", to, " of ", from);
  }
}

// LAPACK's routine reads outside its arguments otherwise. linalg.eig() has the same check.
void check_finite(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  if (stack.empty() || !stack[0].isTensor())
    return;
  const at::Tensor& matrix = stack[0].toTensor();
  TORCH_CHECK(!matrix.defined() || at::isfinite(matrix).all().item<bool>(), schema.name(),
              ": input tensor should not contain infs or NaNs.");
}

bool has_scales(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.name().starts_with(kScales))
      return schema.argumentIndexWithName("output_size").has_value();
  return false;
}

}  // namespace

ArgumentCheck argument_check(const c10::FunctionSchema& schema) {
  if (!schema.name().starts_with(marshal::kAten))
    return nullptr;
  const std::string_view name = std::string_view(schema.name()).substr(marshal::kAten.size());
  if (name == "_linalg_eigvals" || name == "linalg_eigvals")
    return &check_finite;
  return has_scales(schema) ? &check_scales : nullptr;
}

}  // namespace torch_remote::server
