#pragma once

#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace torch_remote {

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
