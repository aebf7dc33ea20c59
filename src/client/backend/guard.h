#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include "client/process/recording.h"

namespace torch_remote::client {

// Autograd calls setDevice on every guard, and getStream for every node: both must be fast and must
// not throw.
struct RemoteGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override;
  c10::Device getDevice() const override;
  void setDevice(c10::Device device) const override;
  void uncheckedSetDevice(c10::Device device) const noexcept override;

  c10::Stream getStream(c10::Device device) const override;

  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override;
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool has_high_priority) const override;
  c10::Stream exchangeStream(c10::Stream stream) const override;

  // A fixed maximum: autograd sizes its queues by it once, and devices may be connected later.
  c10::DeviceIndex deviceCount() const noexcept override;

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
              c10::EventFlag flag) const override;
  void block(void* event, const c10::Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override;
  void synchronizeEvent(void* event) const override;
  double elapsedTime(void* first, void* second, c10::DeviceIndex device) const override;
  bool queryStream(const c10::Stream& stream) const override;
  void synchronizeStream(const c10::Stream& stream) const override;
  void synchronizeDevice(c10::DeviceIndex index) const override;

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& /*stream*/) const override {
    return current_recording() != nullptr;
  }
#endif
  // Every dtype but the quantized ones, which are refused.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override;
};

}  // namespace torch_remote::client
