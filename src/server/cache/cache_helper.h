#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "wire/sha256.h"

namespace torch_remote::server {

// Note [The helper of the cache]
//
// A session is confined and touches no file. A second process, the helper, has the cache's folder:
// a session with a cache forks it before anything else. It has no descriptor but its two sockets,
// its session's process and standard error, Landlock keeps it to the folder, and seccomp to the
// calls of sessions and those of files. It ends with its session, also where that has given its
// ends of the sockets away.
//
//   requests   messages: CacheRequest, answered by CacheAnswer with a descriptor to read
//   saves      SavedPart and bytes, again and again; not answered
//
// The session says once whose entries it wants, before its client has sent a byte. So a session
// that is taken over later gets entries of its own user only. It can add entries up to half of the
// limit, under the hash that the helper computes, and remove entries of its user.

enum class CacheAction : uint32_t {
  kOwner = 1,   // `digest` is the owner; the first request, not answered
  kList = 2,    // answered with wire::CachedEntry as they are in memory
  kFind = 3,    // answered with the file; one of length 0 means that there is none
  kRemove = 4,  // not answered
};

struct CacheRequest {
  CacheAction action = CacheAction::kList;
  wire::Digest digest{};
};

struct CacheAnswer {
  uint64_t length = 0;  // of the file
};

// A part of an upload. The bytes follow.
struct SavedPart {
  uint64_t upload = 0;
  uint64_t offset = 0;
  uint64_t length = 0;  // of the whole upload
  uint64_t bytes = 0;   // of this part, at most kMaxPart
  static constexpr uint64_t kMaxPart = uint64_t{4} << 20;
};

struct CacheOptions {
  std::string folder;  // empty: there is no cache
  uint64_t limit = uint64_t{50} << 30;
  bool is_confined = true;
};

// How long after its session's end the helper reads what was sent before.
inline constexpr std::chrono::seconds kTimeToSave{5};

// The session's ends.
struct CacheSockets {
  Fd requests;
  Fd saves;
};

// Forks the helper: this process must not have started a thread. `secret` is wiped in the helper,
// which does not need it. Throws std::system_error.
CacheSockets start_cache_helper(const CacheOptions& options, std::span<char> secret = {});
// What the helper does, until the session's ends are closed, or for kTimeToSave after `session`
// (of watch_parent()) has ended. Empty: nobody watches the session.
void help_with_cache(const CacheOptions& options, const CacheSockets& sockets,
                     const Fd& session = {});

}  // namespace torch_remote::server
