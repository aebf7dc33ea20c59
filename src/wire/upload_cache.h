#pragma once

#include <cstdint>
#include <vector>

#include "wire/codec.h"
#include "wire/sha256.h"

namespace torch_remote::wire {

// Note [Uploads from the cache]
//
// A server with a cache (serve --cache) keeps uploads for later sessions of the same user. The
// client asks once which it has (QUERY kCachedUploads), hashes what has the length of one of them,
// and names the hash in place of the bytes (QUERY kCachedUpload). If the server cannot read those
// bytes any more, the client sends them.
//
//   kCachedUploads  –
//                   answer := n:varint (sha256:32 length:varint)*n
//   kCachedUpload   storage:varint length:varint sha256:32
//                   answer := is_filled:u8
//
// kCachedUpload fills the whole storage, as a BEGIN with these bytes does, or nothing. It has a
// number like a BEGIN in both cases.
struct CachedEntry {
  Digest digest{};
  uint64_t length = 0;
  bool operator==(const CachedEntry&) const = default;
};

void encode(Writer& writer, const std::vector<CachedEntry>& entries);
std::vector<CachedEntry> decode_cached_entries(Reader& reader);

struct CachedUpload {
  uint64_t storage = 0;
  uint64_t length = 0;
  Digest digest{};
};

// The fields of the query.
void encode(Writer& writer, const CachedUpload& upload);
CachedUpload decode_cached_upload(Reader& reader);
void encode_filled(Writer& writer, bool is_filled);
bool decode_filled(Reader& reader);

}  // namespace torch_remote::wire
