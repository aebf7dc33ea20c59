#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fd.h"
#include "server/cache/cache_helper.h"
#include "wire/upload_cache.h"

namespace torch_remote::server {

// A session's end of Note [The helper of the cache]. Where the helper is gone, or too slow, nothing
// is found and nothing is saved. One thread loads and one thread saves.
class UploadCache {
 public:
  static constexpr std::chrono::milliseconds kSavePatience{1000};

  // `patience` is how long save() waits.
  UploadCache(CacheSockets helper, const wire::Digest& owner,
              std::chrono::milliseconds patience = kSavePatience);

  // --- the executor

  // What the owner has.
  std::vector<wire::CachedEntry> list();
  // The file of an entry of this length. Empty: there is none.
  Fd find(const wire::Digest& digest, uint64_t length);
  // Reads the file of an entry. False: the bytes are not those that the digest names; the entry is
  // removed. `into` has anything then.
  bool read(const Fd& file, const wire::Digest& digest, std::span<std::byte> into);

  // --- the reader thread

  // The next part of an upload of `length` bytes. If the helper has not taken all of it within the
  // patience, nothing is saved any more.
  void save(uint64_t upload, uint64_t offset, uint64_t length, std::span<const std::byte> part);

 private:
  struct Answer {
    Fd file;
    uint64_t length = 0;
  };

  Answer ask(CacheAction action, const wire::Digest& digest);
  bool tell(CacheAction action, const wire::Digest& digest) const;

  const std::chrono::milliseconds patience_;
  Fd requests_;  // empty: the helper did not answer
  Fd saves_;     // empty: the helper did not take a part
};

}  // namespace torch_remote::server
