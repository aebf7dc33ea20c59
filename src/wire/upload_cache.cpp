#include "wire/upload_cache.h"

#include <algorithm>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

Digest digest(Reader& reader) {
  Digest read{};
  const auto bytes = reader.raw(read.size());
  std::copy(bytes.begin(), bytes.end(), read.begin());
  return read;
}

}  // namespace

void encode(Writer& writer, const std::vector<CachedEntry>& entries) {
  writer.varint(entries.size());
  for (const CachedEntry& entry : entries) {
    writer.raw(entry.digest);
    writer.varint(entry.length);
  }
}

std::vector<CachedEntry> decode_cached_entries(Reader& reader) {
  std::vector<CachedEntry> entries;
  for (uint64_t n = reader.count(kMaxCachedUploads, "uploads in a cache"); n > 0; --n) {
    const Digest sum = digest(reader);
    entries.push_back({sum, reader.count(kMaxStorageBytes, "length of an upload")});
  }
  return entries;
}

void encode(Writer& writer, const CachedUpload& upload) {
  writer.varint(upload.storage);
  writer.varint(upload.length);
  writer.raw(upload.digest);
}

CachedUpload decode_cached_upload(Reader& reader) {
  CachedUpload upload;
  upload.storage = reader.varint();
  if (upload.storage == 0)
    throw ProtocolError("name 0 is not valid");
  upload.length = reader.count(kMaxStorageBytes, "length of an upload");
  upload.digest = digest(reader);
  return upload;
}

void encode_filled(Writer& writer, bool is_filled) {
  writer.u8(is_filled ? 1 : 0);
}

bool decode_filled(Reader& reader) {
  const uint8_t value = reader.u8();
  if (value > 1)
    throw ProtocolError("a flag is neither 0 nor 1");
  return value == 1;
}

}  // namespace torch_remote::wire
