#include "client/backend/allocator.h"

#include "client/call/copy.h"
#include "client/machines/current_device.h"
#include "client/machines/machines.h"
#include "client/memory/storage.h"

namespace torch_remote::client {

RemoteAllocator& RemoteAllocator::instance() {
  static auto* allocator = new RemoteAllocator;
  return *allocator;
}

c10::DataPtr RemoteAllocator::allocate(size_t nbytes) {
  return allocate_remote(nbytes, current_device());
}

void RemoteAllocator::copy_data(void* destination, const void* source, size_t count) const {
  copy_addresses(destination, source, count);
}

bool RemoteAllocator::initialized() {
  return Machines::instance().is_initialized();
}

c10::CachingDeviceAllocator::DeviceStats RemoteAllocator::getDeviceStats(
    c10::DeviceIndex /*device*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "memory statistics of remote devices are not implemented yet");
}

}  // namespace torch_remote::client
