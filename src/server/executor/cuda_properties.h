#pragma once

#include "wire/handshake.h"

namespace torch_remote::server {

// Fills in name, memory, compute capability and multiprocessors of a CUDA device, with torch's
// number for it (after CUDA_VISIBLE_DEVICES). Asks the driver, because torch's functions need
// CUDA's headers; leaves what the driver does not know. Only in a session's process where torch has
// started CUDA.
void describe_cuda_device(int index, wire::DeviceProperties& properties);

}  // namespace torch_remote::server
