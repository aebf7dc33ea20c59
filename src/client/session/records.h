#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "client/capture/record.h"

namespace torch_remote::client {

class Session;

// Note [Storage records]
//
// Every remote storage has a StorageRecord. Its name is how the server knows it; its address is what
// PyTorch sees as the data pointer: unique, never used again, 512-byte aligned, in a range that no process
// can map, so that code that follows it faults at once. torch.save and DLPack wrap the bare address in a
// storage of their own; the record is then found by address, by looking through all live records (rare).
//
// Records live in slabs that are never given back, so that the search needs no lock against deleters.
class RecordPool {  // thread-safe
 public:
  static RecordPool& instance();  // leaks: deleters may run at exit

  StorageRecord* make(uint64_t name, Session* session, uint8_t server_device, uint64_t nbytes);
  void give_back(StorageRecord* record);
  // A storage that grew needs a new range of addresses. Refuses one larger than any server's.
  uint64_t new_address(uint64_t nbytes);
  // The live record whose range holds `address`, or null.
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

// The record of a remote tensor; throws for one without (not made by us).
inline StorageRecord* record_of(const at::Tensor& tensor) {
  return record_of(*tensor.unsafeGetTensorImpl());
}

}  // namespace torch_remote::client
