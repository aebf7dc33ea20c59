#include "client/kernels/composite.h"

#include <limits>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/TracerMode.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/ops/_batch_norm_impl_index_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/_cudnn_ctc_loss.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/ctc_loss_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/cudnn_batch_norm.h>
#include <ATen/ops/cudnn_grid_sampler.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/group_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/log_softmax_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/max_pool1d_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/softmax_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/zeros.h>

#include "client/call/dispatch.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
namespace {

// CUDA's kernels can read half precision and write float.
bool converts_itself(const at::Tensor& input, std::optional<at::ScalarType> dtype) {
  return input.scalar_type() == at::kHalf && dtype == at::kFloat && is_on_cuda_server(input);
}

}  // namespace

at::Tensor softmax(const at::Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype) {
  if (converts_itself(input, dtype))
    return at::_softmax(input, dim, true);
  return at::compositeimplicitautograd::softmax(input, dim, dtype);
}

at::Tensor log_softmax(const at::Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype) {
  if (converts_itself(input, dtype))
    return at::_log_softmax(input, dim, true);
  return at::compositeimplicitautograd::log_softmax(input, dim, dtype);
}

// A CPU makes a mask and multiplies; CUDA has one kernel for both, which rounds differently.
at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.sym_numel() == 0)
    return input;
  if (p == 1)
    return input.mul(at::zeros({}, input.options()));
  if (!is_on_cpu_server(input))
    return std::get<0>(at::native_dropout(input, p, train));
  at::Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  noise.div_(1 - p);
  return input.mul(noise);
}

namespace {

bool is_channels_last(const at::Tensor& tensor) {
  const at::MemoryFormat format = tensor.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

// Inputs for which rms_norm is composed on every device.
bool is_always_composed(const at::Tensor& input, const std::optional<at::Tensor>& weight) {
  const bool is_mixed = weight.has_value() && weight->defined() && weight->dtype() != input.dtype();
  return is_mixed || input.is_complex() || is_channels_last(input);
}

}  // namespace

// CUDA's kernel accepts contiguous inputs only.
at::Tensor group_norm(const at::Tensor& input, int64_t groups,
                      const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool cudnn_enabled) {
  return at::compositeimplicitautograd::group_norm(
      is_on_cuda_server(input) ? input.contiguous() : input, groups, weight, bias, eps,
      cudnn_enabled);
}

// One kernel on CUDA, six elsewhere.
at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  if (is_always_composed(input, weight))
    return at::compositeimplicitautograd::rms_norm_symint(input, normalized, weight, eps);
  // Only PyTorch's rms_norm checks the shapes, and it would call the fused operator here.
  const c10::SymIntArrayRef sizes = input.sym_sizes();
  const auto tail = sizes.size() < normalized.size()
                        ? c10::SymIntArrayRef()
                        : sizes.slice(sizes.size() - normalized.size());
  const bool fits =
      !normalized.empty() && tail == normalized &&
      (!weight.has_value() || !weight->defined() || weight->sym_sizes() == normalized);
  if (!fits)
    return at::compositeimplicitautograd::rms_norm_symint(input, normalized, weight, eps);
  const auto plain = C10_AS_INTARRAYREF_SLOW_ALLOC(normalized);
  const at::IntArrayRef shape = plain;
  return std::get<0>(is_on_cuda_server(input) ? at::_fused_rms_norm(input, shape, weight, eps)
                                              : at::compositeimplicitautograd::_fused_rms_norm(
                                                    input, shape, weight, eps));
}

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

namespace {

bool fits_cudnn(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return (type == at::kDouble || type == at::kFloat || type == at::kHalf) &&
         accepts_cudnn(tensor) && at::native::canUse32BitIndexMath(tensor);
}

}  // namespace

void convolution(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  if (C10_LIKELY(!at::tracer::impl::is_dispatch_enabled()))
    return dispatch(operation, stack);
  static const auto kernel = c10::KernelFunction::makeFromUnboxedFunction(
      TORCH_FN(at::compositeexplicitautograd::convolution_symint));
  kernel.callBoxed(operation, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

at::Tensor grid_sampler(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation,
                        int64_t padding, bool align_corners) {
  constexpr int64_t kBilinear = 0;
  constexpr int64_t kZeros = 0;
  constexpr int64_t kMostChannels = 1024;
  if (interpolation == kBilinear && padding == kZeros && align_corners && input.dim() == 4 &&
      fits_cudnn(input) && fits_cudnn(grid) && input.sym_size(1) <= kMostChannels)
    return at::cudnn_grid_sampler(input, grid);
  return at::compositeimplicitautograd::grid_sampler(input, grid, interpolation, padding,
                                                     align_corners);
}

at::Tensor grid_sampler_fallback(const at::Tensor& input, const at::Tensor& grid,
                                 int64_t interpolation, int64_t padding, bool align_corners) {
  return at::grid_sampler_2d(input, grid, interpolation, padding, align_corners);
}

// A CPU has a kernel without indices, called inside this operator: the server runs it whole.
at::Tensor max_pool1d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const bool needs_indices = (input.requires_grad() && at::GradMode::is_enabled()) ||
                             input._fw_grad(/*level=*/0).defined();
  // The call below bypasses the dispatcher, so it needs plain tensors: Note [Wrapped tensors].
  if (needs_indices || at::isTensorSubclassLike(input) || is_on_cuda_server(input)) {
    return at::compositeimplicitautograd::max_pool1d(input, kernel_size, stride, padding, dilation,
                                                     ceil_mode);
  }
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::max_pool1d", "");
  torch::jit::Stack stack = {input, kernel_size, stride, padding, dilation, ceil_mode};
  dispatch(operation, &stack);
  return stack[0].toTensor();
}

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
