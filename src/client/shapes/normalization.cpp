#include <algorithm>
#include <array>

#include <ATen/EmptyTensor.h>

#include "client/memory/server_branch.h"
#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool ends_with(c10::IntArrayRef whole, const Sizes& tail) {
  return whole.size() >= tail.size() && std::equal(tail.rbegin(), tail.rend(), whole.rbegin());
}

bool is_float(const at::Tensor& tensor) {
  return is_full_float(tensor) || tensor.scalar_type() == at::kHalf ||
         tensor.scalar_type() == at::kBFloat16;
}

// The dtype of layer norm's statistics: a CPU uses that of the weight, CUDA never half precision.
at::ScalarType statistics_dtype(const at::Tensor& input, const at::Tensor& weight) {
  if (is_full_float(input))
    return input.scalar_type();
  if (!is_on_cpu_server(input))
    return at::kFloat;
  return weight.defined() ? weight.scalar_type() : input.scalar_type();
}

bool layer_norm_parameters_fit(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias, const Sizes& normalized) {
  const at::ScalarType dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
  const bool is_mixed = dtype != input.scalar_type();
  if (is_mixed && (dtype != at::kFloat || is_full_float(input)))
    return false;
  if (weight.defined() != bias.defined() && !is_full_float(input))
    return false;
  return fits(weight, dtype, normalized) && fits(bias, dtype, normalized);
}

// Statistics have one element for each row, and as many dimensions as the input. (input,
// normalized_shape, weight, bias, eps)
bool layer_norm(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor weight = optional_tensor(arguments, 2);
  const Sizes normalized = integers(arguments[1]);
  if (!is_float(input) || normalized.empty() || !ends_with(input.sizes(), normalized) ||
      !layer_norm_parameters_fit(input, weight, optional_tensor(arguments, 3), normalized))
    return false;
  Sizes sizes = input.sizes().vec();
  outputs.push_back(contiguous(input.scalar_type(), sizes));
  std::fill(sizes.end() - static_cast<long>(normalized.size()), sizes.end(), 1);
  const wire::Output statistics = contiguous(statistics_dtype(input, weight), sizes);
  outputs.push_back(statistics);
  outputs.push_back(statistics);
  return true;
}

// The gradients in `mask`, each like its target. False: the layout depends on the kernel.
bool gradients(const c10::IValue& mask, const std::array<at::Tensor, 3>& targets,
               Outputs& outputs) {
  const auto wanted = mask.toBoolList();
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!wanted[i]) {
      outputs.emplace_back();
      continue;
    }
    if (!is_standard(targets[i]) && !is_channels_last(targets[i]))
      return false;
    outputs.push_back(like(targets[i]));
  }
  return true;
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask). All are contiguous.
bool layer_norm_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  if (!is_strided(input) || !is_strided(tensor(arguments, 0)) || !is_float(input))
    return false;
  const at::Tensor result = at::detail::empty_meta(input.sizes(), input.scalar_type());
  return gradients(arguments[7],
                   {result, optional_tensor(arguments, 5), optional_tensor(arguments, 6)}, outputs);
}

// Inputs for which every batch norm kernel gives the output the same layout.
bool is_batch(const at::Tensor& input) {
  return input.dim() >= 2 && input.numel() > 0 && is_float(input) &&
         (is_standard(input) || is_channels_last(input));
}

bool parameters_fit(Arguments arguments, size_t from, size_t count, const at::Tensor& input,
                    at::ScalarType dtype) {
  if (dtype == at::ScalarType::Undefined)
    return false;
  for (size_t i = from; i < from + count; ++i)
    if (!fits(optional_tensor(arguments, i), dtype, {input.size(1)}))
      return false;
  return true;
}

// The dtype of batch norm's parameters and statistics. Undefined: it depends on the device.
at::ScalarType batch_norm_dtype(const at::Tensor& input, const at::Tensor& weight) {
  if (is_full_float(input))
    return input.scalar_type();
  const bool is_mixed = weight.defined() && weight.scalar_type() == at::kFloat;  // under autocast
  return is_mixed ? at::kFloat : at::ScalarType::Undefined;
}

// In evaluation mode a CPU returns no statistics.
void batch_norm_outputs(const at::Tensor& input, at::ScalarType dtype, bool training,
                        Outputs& outputs) {
  const bool has_statistics = training || !is_on_cpu_server(input);
  const Sizes statistics = {has_statistics ? input.size(1) : 0};
  outputs.push_back(like(input));
  outputs.push_back(contiguous(dtype, statistics));
  outputs.push_back(contiguous(dtype, statistics));
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps)
bool batch_norm(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::ScalarType dtype = batch_norm_dtype(input, optional_tensor(arguments, 1));
  if (!is_batch(input) || !parameters_fit(arguments, 1, 4, input, dtype))
    return false;
  const bool training = arguments[5].toBool();
  if (!training && !optional_tensor(arguments, 3).defined())
    return false;
  batch_norm_outputs(input, dtype, training, outputs);
  return true;
}

// (input, weight, bias, training, momentum, eps)
bool batch_norm_no_stats(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::ScalarType dtype = batch_norm_dtype(input, optional_tensor(arguments, 1));
  if (!is_batch(input) || !parameters_fit(arguments, 1, 2, input, dtype) || !arguments[3].toBool())
    return false;
  batch_norm_outputs(input, dtype, true, outputs);
  return true;
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask)
bool batch_norm_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  const at::Tensor& weight = optional_tensor(arguments, 2);
  const at::ScalarType dtype = batch_norm_dtype(input, weight);
  if (!is_batch(input) || !weight.defined() || !parameters_fit(arguments, 2, 3, input, dtype))
    return false;
  const bool is_standard_call = is_standard(input) && is_standard(tensor(arguments, 0));
  // On CUDA the layout depends on which kernel runs.
  if (!is_standard_call && !is_on_cpu_server(input))
    return false;
  return gradients(arguments[9], {input, weight, weight}, outputs);
}

// (input, weight, bias, N, C, HxW, group, eps)
bool group_norm(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_standard(input) || !is_batch(input) || !is_full_float(input) ||
      !parameters_fit(arguments, 1, 2, input, input.scalar_type()))
    return false;
  const Sizes statistics = {arguments[3].toInt(), arguments[6].toInt()};
  if (statistics[0] != input.size(0) || statistics[1] <= 0 || input.size(1) % statistics[1] != 0)
    return false;
  outputs.push_back(like(input));
  outputs.push_back(contiguous(input.scalar_type(), statistics));
  outputs.push_back(contiguous(input.scalar_type(), statistics));
  return true;
}

// (grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
bool group_norm_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  const at::Tensor& weight = optional_tensor(arguments, 4);
  if (!is_standard(input) || !is_batch(input) || !is_standard(tensor(arguments, 0)))
    return false;
  if (!is_full_float(input) || !weight.defined() ||
      !parameters_fit(arguments, 4, 1, input, input.scalar_type()))
    return false;
  return gradients(arguments[9], {input, weight, weight}, outputs);
}

bool is_weight_norm(const at::Tensor& direction, const at::Tensor& length) {
  return is_strided(direction) && is_strided(length) && is_full_float(direction) &&
         direction.scalar_type() == length.scalar_type() && direction.dim() == length.dim();
}

// The weight, and the norms, which have the strides of g. (v, g, dim)
bool weight_norm(Arguments arguments, Outputs& outputs) {
  const at::Tensor& direction = tensor(arguments, 0);
  const at::Tensor& length = tensor(arguments, 1);
  if (!is_weight_norm(direction, length) || !is_plain(length))
    return false;
  outputs.push_back(contiguous(direction.scalar_type(), direction.sizes().vec()));
  outputs.push_back(fresh(length.scalar_type(), length.sizes().vec(), length.strides().vec()));
  return true;
}

// (grad_w, saved_v, saved_g, saved_norms, dim)
bool weight_norm_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& direction = tensor(arguments, 1);
  const at::Tensor& length = tensor(arguments, 2);
  if (!is_weight_norm(direction, length))
    return false;
  outputs.push_back(contiguous(direction.scalar_type(), direction.sizes().vec()));
  outputs.push_back(contiguous(length.scalar_type(), length.sizes().vec()));
  return true;
}

}  // namespace

Table normalization_table() {
  return {
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit", batch_norm},
      {"aten::_native_batch_norm_legit.no_stats", batch_norm_no_stats},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_weight_norm_interface_backward", weight_norm_backward},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
  };
}

}  // namespace torch_remote::client::shapes
