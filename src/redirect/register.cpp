#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/tril_indices_ops.h>
#include <ATen/ops/triu_indices_ops.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/library.h>

#include "redirect/kernels.h"
#include "redirect/policy.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pinned = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;

std::vector<std::unique_ptr<torch::Library>> libraries;
bool gate_is_open = false;

at::Device used_instead(const Device& asked) {
  const at::Device device = asked.value_or(at::Device(at::kCUDA));
  const Decision decision = decide({kind_of(device.type()), device.index()}, situation());
  TORCH_CHECK_NOT_IMPLEMENTED(decision.is_redirected(), "There is no ", device,
                              " here, and TorchDevice does not redirect it");
  return device_of(decision);
}

at::Tensor empty(c10::SymIntArrayRef size, Dtype dtype, Layout layout, Device device, Pinned pinned,
                 Format format) {
  return at::_ops::empty_memory_format::call(size, dtype, layout, used_instead(device), pinned,
                                             format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, Dtype dtype,
                         Layout layout, Device device, Pinned pinned) {
  return at::_ops::empty_strided::call(size, stride, dtype, layout, used_instead(device), pinned);
}

at::Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset, Dtype dtype, Layout layout,
                        Device device, Pinned pinned) {
  return at::_ops::tril_indices::call(rows, columns, offset, dtype, layout, used_instead(device),
                                      pinned);
}

at::Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset, Dtype dtype, Layout layout,
                        Device device, Pinned pinned) {
  return at::_ops::triu_indices::call(rows, columns, offset, dtype, layout, used_instead(device),
                                      pinned);
}

// A build of PyTorch with CUDA has these kernels, and warns when they are replaced.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

void install_under(c10::DispatchKey key) {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  libraries.push_back(
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
  torch::Library& library = *libraries.back();
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("tril_indices", tril_indices);
  library.impl("triu_indices", triu_indices);
}

}  // namespace

void install_kernels(bool for_cuda, bool for_mps) {
  if (!libraries.empty())
    return;
  if (for_cuda) {
    install_under(c10::DispatchKey::CUDA);
    torch::utils::set_requires_device_init(at::kCUDA, false);
    gate_is_open = true;
    if (situation().cuda == 0)
      install_guard();
  }
  if (for_mps)
    install_under(c10::DispatchKey::MPS);
}

void remove_kernels() {
  libraries.clear();
  remove_guard();
  if (gate_is_open)
    torch::utils::set_requires_device_init(at::kCUDA, true);
  gate_is_open = false;
}

}  // namespace torch_remote::redirect
