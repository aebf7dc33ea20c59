#include "client/machines/current_device.h"

namespace torch_remote::client {
namespace {

thread_local c10::DeviceIndex this_device = 0;

}  // namespace

c10::DeviceIndex current_device() {
  return this_device;
}

void set_current_device(c10::DeviceIndex index) {
  if (index >= 0)
    this_device = index;
}

}  // namespace torch_remote::client
