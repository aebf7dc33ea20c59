#pragma once

#include <cstdint>

#include "client/capture/record.h"

namespace torch_remote::client {

// Tell the memory history and torch.profiler that a storage was made or freed. Call these only
// while MemoryHistory::is_needed().
void note_made(const StorageRecord& record);
void note_freed(const StorageRecord& record, uint64_t address, uint64_t bytes);

}  // namespace torch_remote::client
