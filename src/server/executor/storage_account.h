#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <c10/core/Allocator.h>

#include "server/bytes/upload_memory.h"
#include "server/executor/entry.h"
#include "wire/limits.h"

namespace torch_remote::server {

struct StorageLimits {
  uint64_t storages = wire::kMaxStorages;  // more are a ProtocolError
  uint64_t bytes = UINT64_MAX;             // of all together; more are out of memory
  // Bytes that are in no storage and count too: of replies, and of failures.
  std::shared_ptr<std::atomic<uint64_t>> others = std::make_shared<std::atomic<uint64_t>>(0);
};

struct StorageTotals {
  uint64_t storages = 0;
  uint64_t bytes = 0;  // with those that have no memory yet
  uint64_t held = 0;   // bytes that have memory
  uint64_t limit = 0;  // StorageLimits::bytes
};

// What the storages of one device use, whether or not they have memory yet.
struct MemoryUse {
  c10::CachingAllocator::Stat bytes;
  c10::CachingAllocator::Stat reserved;  // the same in whole units of 512 bytes
  c10::CachingAllocator::Stat storages;
  uint64_t ooms = 0;  // calls that found no memory

  // A storage counts for the peaks when it gets its memory, or when somebody asks.
  void note_peaks() {
    bytes.peak = std::max(bytes.peak, bytes.current);
    reserved.peak = std::max(reserved.peak, reserved.current);
  }
};

// Counts what the storages of a session use, and enforces their limits. Confined to the executor
// thread.
class StorageAccount {
 public:
  // `warm`: keeps memory of uploads in the room that the limit leaves.
  StorageAccount(UploadMemory& warm, StorageLimits limits)
      : warm_(warm), limits_(std::move(limits)) {}

  // Throws ProtocolError: one storage more would be too many, or this one too large.
  void check_new(uint64_t nbytes) const;
  // Throws OutOfMemoryError unless there is room for `nbytes` more, which are for this storage.
  void check_room(const Entry& entry, uint64_t nbytes) const;

  // A storage of no bytes is made, or freed.
  void add(const Entry& entry) {
    ++storages_;
    use_[entry.number].storages.increase(1);
  }

  void remove(const Entry& entry) {
    --storages_;
    use_[entry.number].storages.decrease(1);
  }

  // Changes the size of a storage.
  void set_bytes(Entry& entry, uint64_t nbytes);
  // Before the storage has memory of that size. Throws OutOfMemoryError.
  void hold(Entry& entry, uint64_t nbytes);
  // The same without a limit.
  void set_held(Entry& entry, uint64_t nbytes);

  MemoryUse& use(uint8_t device) { return use_[device]; }

  StorageTotals totals() const { return {storages_, total_bytes_, held_bytes_, limits_.bytes}; }

  const std::shared_ptr<std::atomic<uint64_t>>& others() const { return limits_.others; }

 private:
  // Bytes that have memory, in storages and elsewhere.
  uint64_t used_bytes() const { return held_bytes_ + limits_.others->load(); }

  void check_room(const Entry& entry, uint64_t nbytes, uint64_t used) const;

  UploadMemory& warm_;
  const StorageLimits limits_;
  std::array<MemoryUse, wire::kMaxDevices> use_;  // by device
  uint64_t storages_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t held_bytes_ = 0;
};

}  // namespace torch_remote::server
