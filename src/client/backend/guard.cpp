#include "client/backend/guard.h"

#include <c10/util/Exception.h>

#include "client/backend/streams.h"
#include "client/machines/machines.h"
#include "client/process/current_device.h"

namespace torch_remote::client {
c10::Device RemoteGuard::exchangeDevice(c10::Device device) const {
  const c10::Device before = getDevice();
  setDevice(device);
  return before;
}

c10::Device RemoteGuard::getDevice() const {
  return {c10::kPrivateUse1, current_device()};
}

void RemoteGuard::setDevice(c10::Device device) const {
  set_current_device(device.index());
}

void RemoteGuard::uncheckedSetDevice(c10::Device device) const noexcept {
  set_current_device(device.index());
}

c10::DeviceIndex RemoteGuard::deviceCount() const noexcept {
  return kMaxDevices;
}

c10::Stream RemoteGuard::getStream(c10::Device wanted) const {
  const c10::Device device = with_index(wanted);
  const c10::StreamId id = are_streams_used() ? current_stream(device.index()) : 0;
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

c10::Stream RemoteGuard::getNewStream(c10::Device device, int priority) const {
  return new_stream(device, priority < 0);
}

c10::Stream RemoteGuard::getStreamFromGlobalPool(c10::Device device, bool has_high_priority) const {
  return new_stream(device, has_high_priority);
}

c10::Stream RemoteGuard::exchangeStream(c10::Stream stream) const {
  check_stream(stream);
  const c10::Stream before = getStream(stream.device());
  set_current_stream(stream.device_index(), static_cast<uint8_t>(stream.id()));
  return before;
}

void RemoteGuard::record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
                         c10::EventFlag flag) const {
  TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ",
              static_cast<int>(device), " does not match recording stream's device index ",
              static_cast<int>(stream.device_index()), ".");
  auto* recorded = static_cast<Event*>(*event);
  record_event(recorded, stream, flag);
  *event = recorded;
}

void RemoteGuard::block(void* event, const c10::Stream& stream) const {
  if (event != nullptr)
    wait_for_event(*static_cast<Event*>(event), stream);
}

bool RemoteGuard::queryEvent(void* event) const {
  return event == nullptr || has_happened(*static_cast<Event*>(event));
}

void RemoteGuard::destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept {
  destroy_event(static_cast<Event*>(event));
}

void RemoteGuard::synchronizeEvent(void* event) const {
  if (event != nullptr)
    synchronize_event(*static_cast<Event*>(event));
}

double RemoteGuard::elapsedTime(void* first, void* second, c10::DeviceIndex /*device*/) const {
  TORCH_CHECK(first != nullptr && second != nullptr,
              "Both events must be recorded before calculating elapsed time.");
  return elapsed_milliseconds(*static_cast<Event*>(first), *static_cast<Event*>(second));
}

bool RemoteGuard::queryStream(const c10::Stream& stream) const {
  return is_done(stream);
}

void RemoteGuard::synchronizeStream(const c10::Stream& stream) const {
  synchronize_stream(stream);
}

void RemoteGuard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  record_stream(data, stream);
}

c10::DeviceCapability RemoteGuard::getDeviceCapability(c10::Device /*device*/) const {
  c10::DeviceCapability capability;
  auto& types = capability.capability_data.supported_scalar_types;
  types.has_QInt8 = types.has_QUInt8 = types.has_QInt32 = 0;
  types.has_QUInt4x2 = types.has_QUInt2x4 = 0;
  return capability;
}

void RemoteGuard::synchronizeDevice(c10::DeviceIndex index) const {
  if (!Machines::instance().is_initialized())
    return;
  Machines::instance().place(index < 0 ? current_device() : index).session->synchronize();
}

}  // namespace torch_remote::client
