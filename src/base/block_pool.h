#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace torch_remote {

// Large blocks of memory that are kept when they are freed, for later requests of about the same
// size. Receiving into new memory costs a page fault for each page, which takes longer than
// receiving. Thread-safe.
class BlockPool {
 public:
  // Smaller blocks are not worth keeping: malloc keeps them by itself.
  static constexpr size_t kSmallest = size_t{1} << 20;

  struct Block {
    void* memory = nullptr;
    size_t nbytes = 0;  // all of it: may be up to an eighth more than was asked for
  };

  // Where blocks come from. `allocate` throws if there is no memory.
  struct Source {
    std::function<void*(size_t)> allocate;
    std::function<void(void*)> free;
  };

  BlockPool(Source source, uint64_t most_kept) : source_(std::move(source)), most_(most_kept) {}

  ~BlockPool() { empty(); }

  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A kept block that fits, else a new one. Throws what the source throws, after it has given up
  // all that is kept.
  Block take(size_t nbytes);
  // For a block that is not used any more. The oldest are freed if there is no room.
  void keep(Block block);

  void free(Block block) const { source_.free(block.memory); }

  // How much may be kept, besides the limit of the constructor.
  void set_room(uint64_t bytes);

  void empty() { shrink(0); }

  uint64_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }

 private:
  Block take_kept(size_t nbytes);
  void shrink(uint64_t bytes);

  const Source source_;
  const uint64_t most_;
  std::atomic<uint64_t> room_{UINT64_MAX};
  std::atomic<uint64_t> kept_bytes_{0};  // changes under mutex_
  Mutex mutex_;
  std::deque<Block> kept_ GUARDED_BY(mutex_);  // the oldest first
};

// What a deleter that gets only an address must know of the memory there. Thread-safe.
template <typename Value>
class AddressTable {
 public:
  void add(const void* address, Value value) {
    MutexLock lock(mutex_);
    values_.emplace(address, std::move(value));
  }

  // The address was added.
  Value find(const void* address) {
    MutexLock lock(mutex_);
    return values_.at(address);
  }

  // Removes what it returns.
  Value take(const void* address) {
    MutexLock lock(mutex_);
    return std::move(values_.extract(address).mapped());
  }

 private:
  Mutex mutex_;
  std::unordered_map<const void*, Value> values_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote
