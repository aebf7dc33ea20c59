#pragma once

#include <cstdint>

#include "client/process/records.h"
#include "client/session/session.h"
#include "wire/figures.h"

namespace torch_remote::client {

// The server's figures for the memory of a device, after the action. Waits once. A tensor counts
// from torch.empty() on: the server is told of those that it does not know yet.
wire::MemoryFigures memory_figures(Session& session, uint8_t device, wire::MemoryAction action);

// Note [Near the limit]
//
// The client knows how much its tensors have on each device. When that passes half of the device's
// memory it asks the server, once, how much is free. When less than a twentieth of that is left,
// calls are waited for, so that running out of memory is raised by the call itself, as with CUDA.
// A limit that the program has set (limit_memory()) is checked by the client. The mark is never
// above it, so that a call that is far from both looks at the mark only.
bool find_out_whether_it_fits(Session& session, uint8_t device);

// A call whose outputs are counted already may not find memory.
inline bool may_not_fit(Session& session, uint8_t device) {
  return session.order().memory(device).is_above_mark() &&
         find_out_whether_it_fits(session, device);
}

// Limits the program's tensors on a device to a part of its memory; 1: no limit. Waits once.
void limit_memory(Session& session, uint8_t device, double fraction);
// Raises OutOfMemoryError if the program's tensors, of which `added` bytes are a call's own, are
// over that limit. A call that adds nothing passes, as on CUDA. `is_counted`: live() has them.
void check_memory_limit(Session& session, uint8_t device, uint64_t added, bool is_counted);

// A new storage of this size is to get its memory at once, so that torch.empty() itself raises.
// Small ones do not wait for a machine that is still being started.
bool must_reserve(Session& session, uint8_t device, uint64_t nbytes);
// The server allocates the storage now. Waits; raises OutOfMemoryError.
void reserve(StorageRecord& record);

// What NVML on the server tells of a device. Waits once. Raises if it tells nothing.
wire::Telemetry device_telemetry(Session& session, uint8_t device);

}  // namespace torch_remote::client
