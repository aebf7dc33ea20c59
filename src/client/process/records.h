#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "client/capture/record.h"

namespace torch_remote::client {

class Session;

struct LiveStorage {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint8_t stream = 0;
};

// Note [Storage records]
//
// Every remote storage has a StorageRecord. The server knows it by its name. PyTorch sees its
// address as the data pointer: unique, never reused, 512-byte aligned, in a range that no process
// can map, so that dereferencing it faults at once. torch.save and DLPack wrap the bare address in
// a storage of their own; the record is then searched by address among all live records (rare).
//
// Records are in slabs that are never freed, so that the search needs no lock against deleters. The
// address is published last and taken back first: who holds the pool's lock and finds one may read
// the other fields.
class RecordPool {  // thread-safe
 public:
  static RecordPool& instance();  // leaks: deleters may run at exit

  // StorageRecord::made_by of an output whose call is not written yet: that call announces it.
  static constexpr uint64_t kToBeWritten = UINT64_MAX;

  StorageRecord* make(uint64_t name, Session* session, uint8_t server_device, uint64_t nbytes,
                      uint8_t stream = 0, uint64_t made_by = 0);
  // Live records of the session that the server does not know yet, without outputs whose call is
  // being written.
  std::vector<StorageRecord*> unannounced(const Session* session, uint8_t server_device);
  // The session's live storages that have bytes.
  std::vector<LiveStorage> live_of(const Session* session, uint8_t server_device);
  void give_back(StorageRecord* record);
  // A new range of addresses, for a storage that grew. Refuses one larger than any server's memory.
  uint64_t new_address(uint64_t nbytes);
  // The live record whose range contains `address`, or null.
  StorageRecord* find(uint64_t address);

  uint64_t live() const { return live_.load(std::memory_order_relaxed); }

  void note_dead() { live_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  static constexpr size_t kSlab = 1024;
  using Slab = std::array<StorageRecord, kSlab>;

  Mutex mutex_;
  std::deque<std::unique_ptr<Slab>> slabs_ GUARDED_BY(mutex_);
  StorageRecord* free_ GUARDED_BY(mutex_) = nullptr;
  std::atomic<uint64_t> next_address_;
  std::atomic<uint64_t> live_{0};

  RecordPool();
};

inline Session* session_of(const StorageRecord& record) {
  return static_cast<Session*>(record.session);
}

// The record of a remote tensor. Throws if it has none.
inline StorageRecord* record_of(const at::Tensor& tensor) {
  return record_of(*tensor.unsafeGetTensorImpl());
}

}  // namespace torch_remote::client
