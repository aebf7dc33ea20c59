#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "wire/upload_cache.h"

namespace torch_remote::client {

struct OperatorInfo;
class Session;

// How the server's form of an operator differs from ours.
struct OperatorMatch {
  std::string refusal;            // not empty: why the server cannot run it
  std::vector<uint32_t> lacking;  // our arguments that its operator lacks: they need their default
};

// What is known of a server's operators. Thread-safe.
class ServerOperators {
 public:
  // By OperatorInfo::id. Nothing: not known yet; null: the server has the same operator.
  std::optional<const OperatorMatch*> find(uint32_t id);
  // Keeps the first match of an operator, and returns it.
  const OperatorMatch* keep(uint32_t id, std::unique_ptr<const OperatorMatch> match);

  bool has_fingerprints();
  void add_fingerprints(const std::vector<uint64_t>& fingerprints);
  bool has_fingerprint(uint64_t fingerprint);

 private:
  Mutex mutex_;
  bool has_asked_ GUARDED_BY(mutex_) = false;
  std::unordered_set<uint64_t, NameHash> fingerprints_ GUARDED_BY(mutex_);  // of its operators
  std::unordered_map<uint32_t, std::unique_ptr<const OperatorMatch>> matches_ GUARDED_BY(mutex_);
};

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
