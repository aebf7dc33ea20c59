#pragma once

#include <c10/core/Device.h>

namespace torch_remote::client {

// The device this thread is on. Thread-local, no I/O.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);

}  // namespace torch_remote::client
