#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace torch_remote::client {

struct RemoteHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return true; }

  bool hasPrimaryContext(c10::DeviceIndex index) const override;

  // PyTorch calls this before it pins memory or uses streams: neither needs a server.
  void init() const override {}

  c10::DeviceIndex deviceCount() const override;
  void setCurrentDevice(c10::DeviceIndex index) const override;
  c10::DeviceIndex getCurrentDevice() const override;
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override;
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override;
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override;
  at::Generator getNewGenerator(c10::DeviceIndex index) const override;
  c10::Device getDeviceFromPtr(void* data) const override;
  bool isPinnedPtr(const void* data) const override;
  c10::Allocator* getPinnedMemoryAllocator() const override;
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override;
};

}  // namespace torch_remote::client
