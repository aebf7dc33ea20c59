#include "client/session/known_uploads.h"

namespace torch_remote::client {

void KnownUploads::set(const std::vector<wire::CachedEntry>& entries) {
  MutexLock lock(mutex_);
  for (const wire::CachedEntry& entry : entries) {
    digests_.insert(entry.digest);
    misses_.emplace(entry.length, 0);
  }
  are_set_.store(true, std::memory_order_release);
}

bool KnownUploads::may_have(uint64_t length) {
  MutexLock lock(mutex_);
  const auto found = misses_.find(length);
  return found != misses_.end() && found->second < kMostMisses;
}

bool KnownUploads::has(const wire::Digest& digest, uint64_t length) {
  MutexLock lock(mutex_);
  const bool is_known = digests_.contains(digest);
  uint32_t& misses = misses_[length];
  misses = is_known ? 0 : misses + 1;
  return is_known;
}

}  // namespace torch_remote::client
