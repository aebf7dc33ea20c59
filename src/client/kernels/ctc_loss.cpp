#include <ATen/core/Reduction.h>
#include <ATen/ops/_cudnn_ctc_loss.h>
#include <ATen/ops/ctc_loss_compositeimplicitautograd_dispatch.h>

#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
namespace {

// PyTorch's _use_cudnn_ctc_loss. It reads the lengths: if they are remote it waits, as on CUDA.
bool uses_cudnn_ctc(const at::Tensor& log_probs, const at::Tensor& targets,
                    const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                    int64_t blank) {
  constexpr int64_t kMostTargets = 255;
  const bool fits = blank == 0 && targets.dim() == 1 && log_probs.scalar_type() == at::kFloat &&
                    targets.scalar_type() == at::kInt && targets.is_contiguous() &&
                    log_probs.dim() == 3 && input_lengths.scalar_type() == at::kInt &&
                    target_lengths.scalar_type() == at::kInt && is_on_cuda_server(log_probs) &&
                    server_of(log_probs).cudnn != 0 && at::globalContext().userEnabledCuDNN();
  if (!fits)
    return false;
  const at::Tensor inputs = input_lengths.cpu().contiguous();
  const at::Tensor wanted = target_lengths.cpu().contiguous();
  if (inputs.numel() < wanted.numel())
    return false;
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    const int length = wanted.const_data_ptr<int>()[i];
    if (length > kMostTargets || length > inputs.const_data_ptr<int>()[i])
      return false;
  }
  return true;
}

}  // namespace

// ctc_loss with lengths as numbers is not needed here: it uses cuDNN only for targets on the CPU.
at::Tensor ctc_loss_tensor(const at::Tensor& log_probs, const at::Tensor& targets,
                           const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                           int64_t blank, int64_t reduction, bool zero_infinity) {
  if (!uses_cudnn_ctc(log_probs, targets, input_lengths, target_lengths, blank)) {
    return at::compositeimplicitautograd::ctc_loss(log_probs, targets, input_lengths,
                                                   target_lengths, blank, reduction, zero_infinity);
  }
  const at::Device device = log_probs.device();
  const at::Tensor losses = std::get<0>(at::_cudnn_ctc_loss(
      log_probs, targets.to(device), input_lengths.to(device), target_lengths.to(device), blank,
      /*deterministic=*/true, zero_infinity));
  if (reduction == at::Reduction::Mean)
    return losses.div(target_lengths.clamp_min(1)).mean();
  return reduction == at::Reduction::Sum ? losses.sum() : losses;
}

}  // namespace torch_remote::client::kernels
