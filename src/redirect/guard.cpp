#include <algorithm>
#include <atomic>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "redirect/kernels.h"
#include "redirect/policy.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
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

}  // namespace torch_remote::redirect
