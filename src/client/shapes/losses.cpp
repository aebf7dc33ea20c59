#include <algorithm>
#include <numeric>

#include <ATen/core/Reduction.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool is_none(const c10::IValue& reduction) {
  return reduction.toInt() == at::Reduction::None;
}

bool is_loss_input(const at::Tensor& input) {
  return is_strided(input) && at::isFloatingType(input.scalar_type());
}

// Undefined, or of the input's dtype and broadcastable to its size.
bool goes_with(const at::Tensor& other, const at::Tensor& input) {
  return !other.defined() || (is_strided(other) && other.scalar_type() == input.scalar_type() &&
                              expands_to(other.sizes(), input.sizes()));
}

// (input, target, weight, pos_weight, reduction)
bool bce_with_logits(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& target = tensor(arguments, 1);
  const at::Tensor weight = optional_tensor(arguments, 2);
  const at::Tensor pos_weight = optional_tensor(arguments, 3);
  if (!is_standard(input) || !is_loss_input(input) ||
      !fits(target, input.scalar_type(), input.sizes()))
    return false;
  if (!goes_with(weight, input) || !goes_with(pos_weight, input))
    return false;
  const bool is_plain_sum = !weight.defined() && !pos_weight.defined();
  if (is_none(arguments[4]) && !is_plain_sum)
    return false;
  outputs.push_back(is_none(arguments[4]) ? like(input) : scalar(input.scalar_type()));
  return true;
}

// (input, target, weight, reduction)
bool bce(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor weight = optional_tensor(arguments, 2);
  if (!is_standard(input) || !is_loss_input(input) ||
      !fits(tensor(arguments, 1), input.scalar_type(), input.sizes()) ||
      !fits(weight, input.scalar_type(), input.sizes()))
    return false;
  outputs.push_back(is_none(arguments[3]) ? like(input) : scalar(input.scalar_type()));
  return true;
}

// (grad_output, input, target, weight, reduction)
bool bce_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  if (!is_standard(input) || !is_loss_input(input) || !goes_with(tensor(arguments, 0), input) ||
      !fits(tensor(arguments, 2), input.scalar_type(), input.sizes()) ||
      !fits(optional_tensor(arguments, 3), input.scalar_type(), input.sizes()))
    return false;
  outputs.push_back(like(input));
  return true;
}

// (input, target, reduction, delta)
bool huber(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_loss_input(input) || !goes_with(tensor(arguments, 1), input) ||
      !(arguments[3].toDouble() > 0))
    return false;
  outputs.push_back(is_none(arguments[2]) ? like(input) : scalar(input.scalar_type()));
  return true;
}

// The kernel writes into zeros of the input's size. (grad_output, input, target, …)
bool regression_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  if (!is_loss_input(input) || !goes_with(tensor(arguments, 0), input) ||
      !goes_with(tensor(arguments, 2), input))
    return false;
  outputs.push_back(contiguous(input.scalar_type(), input.sizes().vec()));
  return true;
}

// Log-probabilities [batch, class, height, width] and one class for each pixel.
bool are_pixels(const at::Tensor& input, const at::Tensor& target, const at::Tensor& weight) {
  return is_loss_input(input) && input.dim() == 4 && target.dim() == 3 && input.numel() > 0 &&
         (target.scalar_type() == at::kLong || target.scalar_type() == at::kByte) &&
         target.sizes().equals({input.size(0), input.size(2), input.size(3)}) &&
         fits(weight, input.scalar_type(), {input.size(1)});
}

// (input, target, weight, reduction, ignore_index)
bool nll_loss2d(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& target = tensor(arguments, 1);
  if (!are_pixels(input, target, optional_tensor(arguments, 2)))
    return false;
  outputs.push_back(is_none(arguments[3]) ? contiguous(input.scalar_type(), target.sizes().vec())
                                          : scalar(input.scalar_type()));
  outputs.push_back(scalar(input.scalar_type()));
  return true;
}

// (grad_output, input, target, weight, reduction, ignore_index, total_weight)
bool nll_loss2d_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  if (!is_standard(input) ||
      !are_pixels(input, tensor(arguments, 2), optional_tensor(arguments, 3)))
    return false;
  outputs.push_back(like(input));
  return true;
}

// A row of targets for each sample, or all targets in one dimension.
bool are_targets(const at::Tensor& targets, const Sizes& lengths) {
  const auto batch = static_cast<int64_t>(lengths.size());
  if (targets.scalar_type() != at::kLong && targets.scalar_type() != at::kInt)
    return false;
  if (lengths.empty() || *std::min_element(lengths.begin(), lengths.end()) < 0)
    return false;
  if (targets.dim() == 1)
    return targets.size(0) == std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return targets.dim() == 2 && targets.size(0) == batch &&
         *std::max_element(lengths.begin(), lengths.end()) <= targets.size(1);
}

// Log-probabilities are [time, batch, label]. (log_probs, targets, input_lengths, target_lengths,
// …)
bool ctc_loss(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes times = integers(arguments[2]);
  const Sizes lengths = integers(arguments[3]);
  const int64_t blank = arguments[4].toInt();
  if (input.dim() != 3 || input.numel() == 0 || !is_full_float(input) || blank < 0 ||
      blank >= input.size(2))
    return false;
  const auto batch = static_cast<size_t>(input.size(1));
  if (times.size() != batch || lengths.size() != batch ||
      !are_targets(tensor(arguments, 1), lengths))
    return false;
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  if (*least < 0 || *most > input.size(0))
    return false;
  const int64_t states = 2 * *std::max_element(lengths.begin(), lengths.end()) + 1;
  outputs.push_back(contiguous(input.scalar_type(), {input.size(1)}));
  outputs.push_back(contiguous(input.scalar_type(), {input.size(1), input.size(0), states}));
  return true;
}

// (grad, log_probs, …)
bool ctc_loss_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  if (input.dim() != 3 || input.numel() == 0 || !is_full_float(input))
    return false;
  outputs.push_back(contiguous(input.scalar_type(), input.sizes().vec()));
  return true;
}

}  // namespace

Table loss_table() {
  return {
      {"aten::binary_cross_entropy_with_logits", bce_with_logits},
      {"aten::binary_cross_entropy", bce},
      {"aten::binary_cross_entropy_backward", bce_backward},
      {"aten::huber_loss", huber},
      {"aten::huber_loss_backward", regression_backward},
      {"aten::mse_loss_backward", regression_backward},
      {"aten::smooth_l1_loss_backward", regression_backward},
      {"aten::nll_loss2d_forward", nll_loss2d},
      {"aten::nll_loss2d_backward", nll_loss2d_backward},
      {"aten::_ctc_loss", ctc_loss},
      {"aten::_ctc_loss_backward", ctc_loss_backward},
  };
}

}  // namespace torch_remote::client::shapes
