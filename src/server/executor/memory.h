#pragma once

#include <cstdint>

#include "server/device/devices.h"
#include "server/executor/storage_table.h"
#include "wire/figures.h"

namespace torch_remote::server {

// Does the action and gives the figures of a device: on CUDA those of PyTorch's allocator, on a CPU
// those of the session's storages and of the host.
wire::MemoryFigures device_memory(const Devices& devices, StorageTable& storages,
                                  const wire::MemoryQuery& query);

// A failure for lack of memory gets the bytes that were wanted and free. If it is host memory, and
// the text has no figures, the text gets the host's, in the words of describe_shortage().
void add_memory_figures(wire::Error& failure, StorageTable& storages, uint8_t device);

}  // namespace torch_remote::server
