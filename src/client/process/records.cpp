#include "client/process/records.h"

#include <c10/util/Exception.h>

#include "wire/limits.h"

namespace torch_remote::client {
namespace {

// Not canonical on x86-64 or aarch64: dereferencing such an address faults.
constexpr uint64_t kFirstAddress = 1ULL << 60;
constexpr uint64_t kAlignment = 512;

}  // namespace

RecordPool::RecordPool() : next_address_(kFirstAddress) {}

RecordPool& RecordPool::instance() {
  static RecordPool* pool = new RecordPool;
  return *pool;
}

uint64_t RecordPool::new_address(uint64_t nbytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, nbytes <= wire::kMaxStorageBytes,
                   "remote out of memory. Tried to allocate ", nbytes,
                   " bytes, which is more than the ", wire::kMaxStorageBytes,
                   " that any server has");
  const uint64_t range = (nbytes / kAlignment + 1) * kAlignment;
  return next_address_.fetch_add(range, std::memory_order_relaxed);
}

StorageRecord* RecordPool::make(uint64_t name, Session* session, uint8_t server_device,
                                uint64_t nbytes, uint8_t stream, uint64_t made_by) {
  const uint64_t address = new_address(nbytes);
  StorageRecord* record = nullptr;
  {
    MutexLock lock(mutex_);
    if (free_ == nullptr) {
      slabs_.push_back(std::make_unique<Slab>());
      for (StorageRecord& fresh : *slabs_.back()) {
        fresh.next = free_;
        free_ = &fresh;
      }
    }
    record = free_;
    free_ = record->next;
  }
  record->name = name;
  record->session = session;
  record->server_device = server_device;
  record->stream = stream;
  record->nbytes.store(nbytes, std::memory_order_relaxed);
  record->announced.store(false, std::memory_order_relaxed);
  record->made_by.store(made_by, std::memory_order_relaxed);
  record->address.store(address, std::memory_order_release);
  live_.fetch_add(1, std::memory_order_relaxed);
  return record;
}

std::vector<StorageRecord*> RecordPool::unannounced(const Session* session, uint8_t server_device) {
  std::vector<StorageRecord*> found;
  MutexLock lock(mutex_);
  for (const auto& slab : slabs_) {
    for (StorageRecord& record : *slab)
      if (record.address.load(std::memory_order_acquire) != 0 && record.session == session &&
          record.server_device == server_device &&
          !record.announced.load(std::memory_order_relaxed) &&
          record.made_by.load(std::memory_order_relaxed) != kToBeWritten)
        found.push_back(&record);
  }
  return found;
}

std::vector<LiveStorage> RecordPool::live_of(const Session* session, uint8_t server_device) {
  std::vector<LiveStorage> found;
  MutexLock lock(mutex_);
  for (const auto& slab : slabs_) {
    for (const StorageRecord& record : *slab) {
      const uint64_t address = record.address.load(std::memory_order_acquire);
      if (address == 0 || record.session != session || record.server_device != server_device)
        continue;
      if (const uint64_t nbytes = record.nbytes.load(std::memory_order_relaxed); nbytes != 0)
        found.push_back({address, nbytes, record.stream});
    }
  }
  return found;
}

void RecordPool::give_back(StorageRecord* record) {
  MutexLock lock(mutex_);
  record->next = free_;
  free_ = record;
}

StorageRecord* RecordPool::find(uint64_t address) {
  if (address < kFirstAddress)
    return nullptr;
  MutexLock lock(mutex_);
  for (const auto& slab : slabs_) {
    for (StorageRecord& record : *slab) {
      const uint64_t first = record.address.load(std::memory_order_acquire);
      if (first == 0 || address < first)
        continue;
      if (address <= first + record.nbytes.load(std::memory_order_relaxed))
        return &record;
    }
  }
  return nullptr;
}

}  // namespace torch_remote::client
