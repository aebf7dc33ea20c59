#include "client/session/server_facts.h"

namespace torch_remote::client {

std::optional<const OperatorMatch*> ServerOperators::find(uint32_t id) {
  MutexLock lock(mutex_);
  const auto at = matches_.find(id);
  return at == matches_.end() ? std::nullopt : std::optional(at->second.get());
}

const OperatorMatch* ServerOperators::keep(uint32_t id,
                                           std::unique_ptr<const OperatorMatch> match) {
  MutexLock lock(mutex_);
  return matches_.try_emplace(id, std::move(match)).first->second.get();
}

bool ServerOperators::has_fingerprints() {
  MutexLock lock(mutex_);
  return has_asked_;
}

void ServerOperators::add_fingerprints(const std::vector<uint64_t>& fingerprints) {
  MutexLock lock(mutex_);
  has_asked_ = true;
  fingerprints_.insert(fingerprints.begin(), fingerprints.end());
}

bool ServerOperators::has_fingerprint(uint64_t fingerprint) {
  MutexLock lock(mutex_);
  return fingerprints_.contains(fingerprint);
}

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
