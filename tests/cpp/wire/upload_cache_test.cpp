#include "wire/upload_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "wire/bytes.h"
#include "wire/handshake.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

Digest digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Sha256, PartsGiveTheDigestOfTheWhole) {
  Sha256 sum;
  for (const std::string_view part : {"a", "", "bc"})
    sum.add(std::as_bytes(std::span(part)));
  EXPECT_EQ(hex(sum.finish()), kAbc);
}

TEST(UploadCache, EntriesAreDigestsAndLengths) {
  Writer writer;
  const std::vector<CachedEntry> entries{{digest_of("abc"), 3}, {digest_of(""), 300}};
  encode(writer, entries);
  EXPECT_EQ(hex(writer.view()).substr(0, 68), std::string("02") + kAbc + "03");
  Reader reader(writer.view());
  EXPECT_EQ(decode_cached_entries(reader), entries);
  reader.finish();
}

TEST(UploadCache, MoreEntriesThanAllowedAreRefused) {
  Writer writer;
  writer.varint(kMaxCachedUploads + 1);
  Reader reader(writer.view());
  EXPECT_THROW(decode_cached_entries(reader), ProtocolError);
}

TEST(UploadCache, AnUploadNamesItsStorageAndDigest) {
  Writer writer;
  encode(writer, CachedUpload{5, 300, digest_of("abc")});
  EXPECT_EQ(hex(writer.view()), std::string("05ac02") + kAbc);
  Reader reader(writer.view());
  const CachedUpload upload = decode_cached_upload(reader);
  EXPECT_EQ(upload.storage, 5);
  EXPECT_EQ(upload.length, 300);
  EXPECT_EQ(upload.digest, digest_of("abc"));
  for (const CachedUpload& wrong : {CachedUpload{0, 1, {}}, CachedUpload{1, UINT64_MAX, {}}}) {
    Writer other;
    encode(other, wrong);
    Reader refused(other.view());
    EXPECT_THROW(decode_cached_upload(refused), ProtocolError);
  }
}

TEST(UploadCache, AFlagIsNeitherMoreThanOneNorMissing) {
  for (const std::vector<std::byte>& body : {std::vector<std::byte>{}, {std::byte{2}}}) {
    Reader reader(body);
    EXPECT_THROW(decode_filled(reader), ProtocolError);
  }
}

TEST(UploadCache, ABeginSaysThatItsBytesAreKept) {
  Writer writer;
  Begin begin;
  begin.upload = 9;
  begin.storage = 2;
  begin.length = 128;
  begin.is_kept = true;
  encode(writer, begin);
  EXPECT_EQ(hex(writer.view()), "0a06090200800102");
  const auto found = find_bulk_begin(writer.view());
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_kept);
  EXPECT_FALSE(found->is_inline);
}

// An owner is who knows the token and, on a Unix socket, is that user. Addresses do not count.
// Promise 7d.
TEST(UploadCache, OwnersDifferByTokenAndUserId) {
  const Digest owner = cache_owner("token", "uid 1000");
  EXPECT_EQ(cache_owner("token", "uid 1000"), owner);
  EXPECT_NE(cache_owner("token", "uid 1001"), owner);
  EXPECT_NE(cache_owner("other", "uid 1000"), owner);
  EXPECT_NE(cache_owner("", "uid 1000"), owner);
  EXPECT_EQ(cache_owner("token", "10.0.0.1"), cache_owner("token", "10.0.0.2"));
}

}  // namespace
}  // namespace torch_remote::wire
