#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "wire/sha256.h"
#include "wire/upload_cache.h"

namespace torch_remote::server {

// Note [Files of the cache]
//
//   DIR/usage            bytes of all files, eight bytes; who changes them holds a lock on it
//   DIR/OWNER/SHA256     an entry: the bytes that have this hash, and nothing else
//   DIR/OWNER/saving-…   an entry that is being written; then it is renamed
//
// OWNER is wire::cache_owner() in hexadecimal. The time of an entry's last change is when it was
// last used. A file counts with the whole blocks of 4 KiB that it takes. One that is being written
// has its full size from the start, so that others count it.
//
// When the limit is reached, the oldest files of all owners are removed, until a tenth of the limit
// is free. `usage` is then set to what was found, which corrects it after a crash. All folders are
// read under the lock, and other sessions wait: so short uploads are not kept, of which there could
// be many.
//
// Who reads an entry compares its hash. Nothing here is an error for a client: what cannot be read
// or written is not cached.

// The cache's folder, for one owner. Any number of processes use the same folder at once.
// Externally synchronised.
class CacheFolder {
 public:
  // Opens the folder, and makes it if it is missing. Throws std::invalid_argument with a message
  // for the user if it is not a folder of this user that nobody else can use, or is read-only.
  static Fd open(const std::string& path);

  // `least` is the length of the shortest upload that is kept.
  CacheFolder(Fd folder, const wire::Digest& owner, uint64_t limit, uint64_t least);

  // The owner's entries, the last used first: at most wire::kMaxCachedUploads.
  std::vector<wire::CachedEntry> list() const;
  // The file of an entry, which counts as used. Empty: there is none.
  Fd find(const wire::Digest& digest) const;
  void remove(const wire::Digest& digest);

  // An entry that is being written.
  struct Saving {
    Fd file;
    std::string name;
    uint64_t length = 0;
    uint64_t written = 0;
    wire::Sha256 sum;
  };

  // Nothing: there is no room, or the upload is too short. One object adds at most half of the
  // limit, so that what one session sends does not displace everything else.
  std::optional<Saving> begin(uint64_t length);
  // False: it could not be written. Call drop().
  static bool add(Saving& saving, std::span<const std::byte> part);
  // All bytes are written: the entry is there for others.
  void finish(Saving saving);
  void drop(const Saving& saving);

 private:
  struct File;

  std::vector<File> files_of(const std::vector<std::string>& owners) const;
  // One of the owner's, if it is there.
  void remove_file(const std::string& name);
  // Removes the oldest files until `room` bytes are free. Returns what the rest has.
  uint64_t evict(uint64_t room);

  const Fd folder_;
  const std::string owner_;
  const uint64_t limit_;
  const uint64_t least_;
  Fd own_;              // DIR/OWNER; may be empty
  uint64_t added_ = 0;  // bytes that this object has begun to write
};

std::string to_hex(const wire::Digest& digest);
// Nothing: the text is no digest.
std::optional<wire::Digest> from_hex(const std::string& text);

}  // namespace torch_remote::server
