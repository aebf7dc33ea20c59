#include "redirect/register.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/tril_indices_ops.h>
#include <ATen/ops/triu_indices_ops.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/library.h>

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

namespace {

using Interface = c10::impl::DeviceGuardImplInterface;

// The index of the accelerator's current device.
c10::Device current_device() {
  const Decision decision = decide({Kind::kCuda, kNoIndex}, situation());
  const c10::DeviceIndex index = decision.is_redirected() ? device_of(decision).index() : 0;
  return {c10::DeviceType::CUDA, std::max(index, c10::DeviceIndex{0})};
}

struct Guard final : Interface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }

  c10::Device exchangeDevice(c10::Device /*device*/) const override { return current_device(); }

  c10::Device getDevice() const override { return current_device(); }

  void setDevice(c10::Device /*device*/) const override {}

  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }

  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

std::atomic<const Interface*>& place() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
}

const Guard guard{};
const Interface* guard_of_torch = nullptr;

}  // namespace

void install_guard() {
  const Interface* const found = place().load();
  if (found == &guard)
    return;
  guard_of_torch = found;
  place().store(&guard);
}

void remove_guard() {
  if (place().load() == &guard)
    place().store(guard_of_torch);
}

namespace {

// Note [Devices in TorchScript]
//
// A script that says "cuda", in its source or in a saved file, gets its device from the operator
// aten::device when it is compiled or loaded; the result becomes a constant of the graph. So
// replacing this operator reaches every device that a script names, before its first run. A script
// that was compiled earlier keeps the devices that it has.

std::shared_ptr<torch::jit::Operator> find_operator() {
  for (const auto& each : torch::jit::getAllOperatorsFor(c10::Symbol::aten("device"))) {
    const auto& arguments = each->schema().arguments();
    if (arguments.size() == 1 && arguments[0].type()->kind() == c10::TypeKind::StringType)
      return each;
  }
  return nullptr;
}

void make_device(torch::jit::Stack& stack) {
  const c10::Device device(torch::jit::pop(stack).toStringRef());
  const Decision decision = decide({kind_of(device.type()), device.index()}, situation());
  torch::jit::push(stack, decision.is_redirected() ? device_of(decision) : device);
}

}  // namespace

// The nodes of graphs have plain pointers to their operators, so both operators live for ever: ours
// is never taken back, and while the redirect is off it does what the original did.
void install_script() {
  static auto* const original = new std::shared_ptr<torch::jit::Operator>;
  if (*original)
    return;
  *original = find_operator();
  if (!*original)
    return;
  const c10::FunctionSchema& schema = (*original)->schema();
  torch::jit::deregisterOperator(schema);
  torch::jit::registerOperator(torch::jit::Operator(c10::toString(schema), make_device,
                                                    c10::AliasAnalysisKind::FROM_SCHEMA));
}

}  // namespace torch_remote::redirect
