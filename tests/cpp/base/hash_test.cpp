#include "base/hash.h"

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

}  // namespace
}  // namespace torch_remote
