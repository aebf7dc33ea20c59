#include "client/backend/guard.h"

#include <c10/util/Exception.h>

#include "client/machines/current_device.h"
#include "client/machines/machines.h"

namespace torch_remote::client {
namespace {

// An event keeps its device, so that synchronizing it waits for that device.
struct Event {
  c10::DeviceIndex device;
};

}  // namespace

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

void RemoteGuard::record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
                         c10::EventFlag /*flag*/) const {
  if (*event == nullptr)
    *event = new Event{};
  static_cast<Event*>(*event)->device = stream.device_index();
}

void RemoteGuard::block(void* /*event*/, const c10::Stream& /*stream*/) const {}

bool RemoteGuard::queryEvent(void* event) const {
  if (event != nullptr)
    synchronizeEvent(event);
  return true;
}

void RemoteGuard::destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept {
  delete static_cast<Event*>(event);
}

void RemoteGuard::synchronizeEvent(void* event) const {
  if (event != nullptr)
    synchronizeDevice(static_cast<Event*>(event)->device);
}

double RemoteGuard::elapsedTime(void* /*first*/, void* /*second*/,
                                c10::DeviceIndex /*device*/) const {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "events of a remote device are not timed yet; call synchronize() and "
                              "measure with time.perf_counter()");
}

bool RemoteGuard::queryStream(const c10::Stream& stream) const {
  synchronizeStream(stream);
  return true;
}

void RemoteGuard::synchronizeStream(const c10::Stream& stream) const {
  synchronizeDevice(stream.device_index());
}

void RemoteGuard::synchronizeDevice(c10::DeviceIndex index) const {
  if (!Machines::instance().is_initialized())
    return;
  Machines::instance().place(index < 0 ? current_device() : index).session->synchronize();
}

}  // namespace torch_remote::client
