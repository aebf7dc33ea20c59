#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "wire/upload_cache.h"

namespace torch_remote::client {

// Which uploads a server has from earlier sessions: Note [Uploads from the cache] in
// wire/upload_cache.h. Thread-safe.
class KnownUploads {
 public:
  // After so many uploads of one length in a row that the server does not have, more of that length
  // are not hashed: they are batches of data, not weights.
  static constexpr uint32_t kMostMisses = 16;

  // Whether set() was called.
  bool are_set() const { return are_set_.load(std::memory_order_acquire); }

  void set(const std::vector<wire::CachedEntry>& entries);
  // The server may have an upload of this length: hash it.
  bool may_have(uint64_t length);
  bool has(const wire::Digest& digest, uint64_t length);

 private:
  std::atomic<bool> are_set_{false};
  Mutex mutex_;
  std::unordered_set<wire::Digest, NameHash> digests_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint32_t, NameHash> misses_ GUARDED_BY(mutex_);  // by length
};

}  // namespace torch_remote::client
