#pragma once

#include "wire/handshake.h"

namespace torch_remote::server {

// Name, memory, compute capability and multiprocessors of a CUDA device, numbered as torch numbers
// them (after CUDA_VISIBLE_DEVICES). The driver is asked, since torch's own answers need CUDA's
// headers; what it does not say is left as it is. Only in a session's own process, and only where
// torch has started CUDA.
void describe_cuda_device(int index, wire::DeviceProperties& properties);

}  // namespace torch_remote::server
