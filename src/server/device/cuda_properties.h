#pragma once

#include <string>

#include "wire/handshake.h"

namespace torch_remote::server {

// Fills in name, memory, compute capability and multiprocessors of a CUDA device, with torch's
// number for it (after CUDA_VISIBLE_DEVICES). Asks the driver, because torch's functions need
// CUDA's headers; leaves what the driver does not know. Only in a session's process where torch has
// started CUDA.
void describe_cuda_device(int index, wire::DeviceProperties& properties);

// The PCI bus of a device ("0000:01:00.0"); empty if the driver does not tell. CUDA_VISIBLE_DEVICES
// changes the numbers of devices, not this.
std::string cuda_bus(int index);

}  // namespace torch_remote::server
