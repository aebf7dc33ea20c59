#pragma once

#include <utility>

#include <c10/core/CachingDeviceAllocator.h>

#include "wire/figures.h"

namespace torch_remote::client {

// Gives out names and addresses; the server allocates at a storage's first use. No GIL, no I/O.
class RemoteAllocator final : public c10::DeviceAllocator {
 public:
  static RemoteAllocator& instance();  // leaks

  c10::DataPtr allocate(size_t nbytes) override;

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source, size_t count) const override;

  bool initialized() override;

  // Of all machines: PyTorch names no device.
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  // These ask the server and wait.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

// The figures of a device, after the action; none where no machine is connected. Waits.
wire::MemoryFigures device_memory(c10::DeviceIndex index, wire::MemoryAction action);

// See limit_memory() of memory_figures.h. Connects if no machine is connected.
void limit_device_memory(c10::DeviceIndex index, double fraction);
double device_memory_limit(c10::DeviceIndex index);

}  // namespace torch_remote::client
