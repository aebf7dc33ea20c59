#include "base/hash.h"

#include <array>
#include <bit>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

TEST(Hash, EveryPrefixOfZerosHasAHashOfItsOwn) {
  const std::vector<std::byte> zeros(300);
  std::set<uint64_t> hashes;
  for (size_t size = 0; size <= zeros.size(); ++size)
    hashes.insert(hash_bytes(std::span(zeros).first(size)));
  EXPECT_EQ(hashes.size(), zeros.size() + 1);
}

TEST(Hash, TheSeedMatters) {
  const std::vector<std::byte> bytes(20);
  EXPECT_NE(hash_bytes(bytes, 1), hash_bytes(bytes, 2));
}

// Flipping one input bit must flip about half of the output bits, whatever the length and the bit.
TEST(Hash, EachBitOfTheInputChangesHalfOfTheOutput) {
  for (size_t size = 1; size <= 70; ++size) {
    std::vector<std::byte> bytes(size, std::byte{0x5a});
    const uint64_t before = hash_bytes(bytes);
    int flipped = 0;
    for (size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      const int changed = std::popcount(before ^ hash_bytes(bytes));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_GT(changed, 8) << size << " " << bit;
      flipped += changed;
    }
    const double mean = flipped / static_cast<double>(size * 8);
    EXPECT_GT(mean, 26) << size;
    EXPECT_LT(mean, 38) << size;
  }
}

TEST(Hash, CountersDoNotCollide) {
  std::set<uint64_t> hashes;
  for (uint64_t i = 0; i < 100'000; ++i)
    hashes.insert(hash_bytes(std::as_bytes(std::span(&i, 1))));
  EXPECT_EQ(hashes.size(), 100'000U);
}

// Promise 7a.
TEST(NameHash, TheKeyIsRandomAndOneForTheProcess) {
  const HashKey& key = process_hash_key();
  EXPECT_EQ(std::set(key.begin(), key.end()).size(), key.size());
  EXPECT_EQ(NameHash()(1), NameHash()(1));
  EXPECT_NE(NameHash()(1), (NameHash{HashKey{1, 3, 5, 7}}(1)));
}

TEST(NameHash, EachBitOfANameChangesHalfOfTheHash) {
  const NameHash hash;
  int flipped = 0;
  for (uint64_t name = 1; name <= 100; ++name)
    for (int bit = 0; bit < 64; ++bit)
      flipped += std::popcount(hash(name) ^ hash(name ^ uint64_t{1} << bit));
  const double mean = flipped / 6400.0;
  EXPECT_GT(mean, 30);
  EXPECT_LT(mean, 34);
}

// Multiples of a power of two fall into one place of a table that does not hash, and so do
// multiples of an inverse in one that multiplies.
// Promise 7a.
TEST(NameHash, NamesThatCollideElsewhereFallApart) {
  const NameHash hash;
  for (const uint64_t step : {uint64_t{1}, uint64_t{1} << 32, 0xf1de83e19937733d}) {
    std::set<uint64_t> low;
    std::set<uint64_t> high;
    for (uint64_t i = 1; i <= 1000; ++i) {
      low.insert(hash(i * step) & 0xffff);
      high.insert(hash(i * step) >> 48);
    }
    EXPECT_GT(low.size(), 950) << step;
    EXPECT_GT(high.size(), 950) << step;
  }
}

// A table that takes eight bytes of a digest as its hash has all of these in one place.
TEST(NameHash, AllBytesOfADigestCount) {
  const NameHash hash;
  for (size_t at = 0; at < 32; ++at) {
    std::set<size_t> low;
    for (unsigned value = 0; value < 256; ++value) {
      std::array<std::byte, 32> digest{};
      digest[at] = static_cast<std::byte>(value);
      low.insert(hash(digest) & 0xffff);
    }
    EXPECT_GT(low.size(), 245) << at;
  }
}

}  // namespace
}  // namespace torch_remote
