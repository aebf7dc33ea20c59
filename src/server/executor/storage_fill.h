#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "server/bytes/upload_memory.h"
#include "server/device/streams.h"
#include "server/executor/storage_table.h"

namespace torch_remote::server {

// Writes the bytes from `offset` on.
using ReadBytes = std::function<void(uint64_t offset, std::span<std::byte> bytes)>;

// Gives the whole storage the bytes that `read` writes, by way of `staging` if they are for a GPU.
// Throws Refused for a pinned storage, OutOfMemoryError, and what `read` throws: then the storage
// has lost its memory.
void fill(StorageTable& storages, Streams& streams, UploadMemory& staging, Entry& entry,
          const ReadBytes& read);

}  // namespace torch_remote::server
