#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/group_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>

#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
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

}  // namespace torch_remote::client::kernels
