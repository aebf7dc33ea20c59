#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/TracerMode.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/cudnn_grid_sampler.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/max_pool1d_compositeimplicitautograd_dispatch.h>

#include "client/call/dispatch.h"
#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
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

}  // namespace torch_remote::client::kernels
