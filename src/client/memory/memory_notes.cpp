#include "client/memory/memory_notes.h"

#include <algorithm>

#include <c10/core/Allocator.h>

#include "client/process/memory_history.h"
#include "client/process/records.h"
#include "client/session/session.h"

namespace torch_remote::client {
namespace {

// `live`: the bytes of the device's tensors when this is done. Does nothing without a profile.
void report(const StorageRecord& record, uint64_t address, int64_t bytes, int64_t live) {
  const auto total = static_cast<size_t>(std::max<int64_t>(live, 0));
  const c10::DeviceIndex index = session_of(record)->order().index_of(record.server_device);
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(address), bytes, total, total,
                                   c10::Device(c10::kPrivateUse1, index));
}

int64_t live_bytes(const StorageRecord& record) {
  return session_of(record)->order().memory(record.server_device).live();
}

}  // namespace

void note_made(const StorageRecord& record) {
  MemoryHistory::instance().note_made(record);
  const auto bytes = static_cast<int64_t>(record.nbytes.load(std::memory_order_relaxed));
  if (bytes != 0)
    report(record, record.address.load(std::memory_order_relaxed), bytes, live_bytes(record));
}

void note_freed(const StorageRecord& record, uint64_t address, uint64_t bytes) {
  MemoryHistory::instance().note_freed(record, address, bytes);
  const auto freed = static_cast<int64_t>(bytes);
  if (freed != 0)
    report(record, address, -freed, live_bytes(record) - freed);
}

}  // namespace torch_remote::client
