#include "client/backend/hooks.h"

#include "client/backend/generator.h"
#include "client/machines/machines.h"
#include "client/memory/pinned.h"
#include "client/memory/storage.h"
#include "client/process/current_device.h"

namespace torch_remote::client {

bool RemoteHooks::hasPrimaryContext(c10::DeviceIndex index) const {
  return Machines::instance().has_device(index);
}

c10::DeviceIndex RemoteHooks::deviceCount() const {
  return std::max<c10::DeviceIndex>(Machines::instance().device_count(), 1);
}

void RemoteHooks::setCurrentDevice(c10::DeviceIndex index) const {
  set_current_device(index);
}

c10::DeviceIndex RemoteHooks::getCurrentDevice() const {
  return current_device();
}

c10::DeviceIndex RemoteHooks::exchangeDevice(c10::DeviceIndex index) const {
  const c10::DeviceIndex before = current_device();
  set_current_device(index);
  return before;
}

c10::DeviceIndex RemoteHooks::maybeExchangeDevice(c10::DeviceIndex index) const {
  return exchangeDevice(index);
}

const at::Generator& RemoteHooks::getDefaultGenerator(c10::DeviceIndex index) const {
  return default_generator(index);
}

at::Generator RemoteHooks::getNewGenerator(c10::DeviceIndex index) const {
  return new_generator(index < 0 ? current_device() : index);
}

c10::Device RemoteHooks::getDeviceFromPtr(void* data) const {
  StorageRecord* record = RecordPool::instance().find(reinterpret_cast<uint64_t>(data));
  TORCH_CHECK(record != nullptr, "this address belongs to no remote storage");
  return {c10::kPrivateUse1,
          Machines::instance().index_of(session_of(*record), record->server_device)};
}

bool RemoteHooks::isPinnedPtr(const void* data) const {
  return is_pinned(data);
}

c10::Allocator* RemoteHooks::getPinnedMemoryAllocator() const {
  return pinned_allocator();
}

void RemoteHooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const {
  resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
}

}  // namespace torch_remote::client
