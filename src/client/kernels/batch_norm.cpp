#include <limits>

#include <ATen/ops/_batch_norm_impl_index_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/cudnn_batch_norm.h>

#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
namespace {

bool has_features(const std::optional<at::Tensor>& tensor, const at::Tensor& input) {
  return tensor.has_value() && tensor->defined() && tensor->sym_numel() == input.sym_size(1);
}

bool is_absent(const std::optional<at::Tensor>& tensor) {
  return !tensor.has_value() || !tensor->defined();
}

bool are_types_for_cudnn(at::ScalarType input, at::ScalarType weight) {
  if (input == at::kBFloat16 || weight == at::kBFloat16)
    return false;
  return input != at::kHalf || weight == at::kFloat;
}

std::optional<at::Tensor> contiguous(const std::optional<at::Tensor>& tensor) {
  return is_absent(tensor) ? tensor : tensor->contiguous();
}

}  // namespace

// On a CUDA server PyTorch uses cuDNN's kernel where it can, which rounds differently from its own.
// Wrong arguments go to PyTorch's own kernel, which refuses them.
BatchNormResult batch_norm_impl_index(const at::Tensor& input,
                                      const std::optional<at::Tensor>& weight,
                                      const std::optional<at::Tensor>& bias,
                                      const std::optional<at::Tensor>& mean,
                                      const std::optional<at::Tensor>& variance, bool training,
                                      double momentum, double eps, bool cudnn_enabled) {
  constexpr int64_t kMostTraining = 880801;
  constexpr int64_t kMostOtherwise = 65535;
  const bool fits = input.dim() >= 3 &&
                    input.sym_size(0) <= (training ? kMostTraining : kMostOtherwise) &&
                    input.sym_numel() < std::numeric_limits<int32_t>::max() && eps >= 0 &&
                    has_features(weight, input) && has_features(bias, input) &&
                    are_types_for_cudnn(input.scalar_type(), weight->scalar_type());
  const bool has_statistics =
      fits && ((has_features(mean, input) && has_features(variance, input)) ||
               (is_absent(mean) && is_absent(variance) && training));
  if (!has_statistics || !accepts_cudnn(input)) {
    return at::compositeimplicitautograd::_batch_norm_impl_index(
        input, weight, bias, mean, variance, training, momentum, eps, cudnn_enabled);
  }
  auto [output, saved_mean, saved_variance, reserve] = at::cudnn_batch_norm(
      input.contiguous(input.suggest_memory_format()), weight->contiguous(), contiguous(bias),
      contiguous(mean), contiguous(variance), training, momentum, eps);
  constexpr int64_t kCudnn = 1;  // PyTorch's number for it
  return {output, saved_mean, saved_variance, reserve, kCudnn};
}

}  // namespace torch_remote::client::kernels
