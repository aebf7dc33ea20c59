#include "client/session/server_operators.h"

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

}  // namespace torch_remote::client
