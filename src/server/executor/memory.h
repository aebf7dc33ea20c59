#pragma once

#include <cstdint>

#include "server/device/devices.h"
#include "server/executor/storage_table.h"
#include "wire/memory.h"

namespace torch_remote::server {

// Does the action and gives the figures of a device: on CUDA those of PyTorch's allocator, on a CPU
// those of the session's storages and of the host.
wire::MemoryFigures device_memory(const Devices& devices, StorageTable& storages,
                                  const wire::MemoryQuery& query);

// A failure for lack of host memory gets the host's figures, in the words of describe_shortage().
// One that has figures stays as it is.
void add_memory_figures(wire::Error& failure, StorageTable& storages, uint8_t device);

}  // namespace torch_remote::server
