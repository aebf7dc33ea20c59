#include "base/block_pool.h"

#include <cstdlib>
#include <new>
#include <unordered_map>

#include <gtest/gtest.h>

namespace torch_remote::testing {
namespace {

constexpr size_t kUnit = BlockPool::kSmallest;

class BlockPoolTest : public ::testing::Test {
 protected:
  void* allocate(size_t nbytes) {
    if (owned + nbytes > limit)
      throw std::bad_alloc();
    void* const memory = std::malloc(nbytes);
    sizes.emplace(memory, nbytes);
    owned += nbytes;
    return memory;
  }

  void release(void* memory) {
    owned -= sizes.at(memory);
    sizes.erase(memory);
    std::free(memory);
  }

  size_t limit = 1024 * kUnit;
  size_t owned = 0;  // bytes that the pool has from its source
  std::unordered_map<void*, size_t> sizes;
  BlockPool pool{{[this](size_t nbytes) { return allocate(nbytes); },
                  [this](void* memory) { release(memory); }},
                 32 * kUnit};
};

TEST_F(BlockPoolTest, AKeptBlockIsUsedAgainForAboutItsSize) {
  const BlockPool::Block first = pool.take(9 * kUnit);
  pool.keep(first);
  const BlockPool::Block smaller = pool.take(7 * kUnit);
  EXPECT_NE(smaller.memory, first.memory);
  EXPECT_EQ(pool.take(8 * kUnit).memory, first.memory);
  EXPECT_EQ(pool.kept_bytes(), 0);
  pool.free(first);
  pool.free(smaller);
}

// Else a block that is used for smaller and smaller requests would count for less and less.
TEST_F(BlockPoolTest, ABlockKeepsItsSizeHoweverOftenItIsUsed) {
  size_t nbytes = 32 * kUnit;
  BlockPool::Block block = pool.take(nbytes);
  for (int round = 0; round < 20; ++round) {
    pool.keep(block);
    EXPECT_EQ(pool.kept_bytes(), owned);
    nbytes -= nbytes / 10;
    block = pool.take(nbytes);
    EXPECT_EQ(block.nbytes, sizes.at(block.memory));
    EXPECT_LE(block.nbytes, nbytes + nbytes / 8);
  }
  pool.free(block);
  pool.empty();
  EXPECT_EQ(owned, 0);
}

TEST_F(BlockPoolTest, TheOldestAreFreedWhenThereIsNoRoom) {
  pool.set_room(2 * kUnit);
  const BlockPool::Block oldest = pool.take(kUnit);
  const BlockPool::Block middle = pool.take(kUnit);
  const BlockPool::Block newest = pool.take(kUnit);
  const BlockPool::Block large = pool.take(3 * kUnit);
  for (const BlockPool::Block& block : {oldest, middle, newest, large})
    pool.keep(block);

  EXPECT_EQ(pool.kept_bytes(), 2 * kUnit);
  EXPECT_EQ(owned, 2 * kUnit);
  EXPECT_EQ(pool.take(kUnit).memory, newest.memory);
  pool.free(newest);
  pool.set_room(0);
  EXPECT_EQ(owned, 0);
}

TEST_F(BlockPoolTest, WhatIsKeptIsGivenUpForABlockThatThereIsNoMemoryFor) {
  limit = 8 * kUnit;
  pool.keep(pool.take(4 * kUnit));
  const BlockPool::Block block = pool.take(8 * kUnit);
  EXPECT_EQ(owned, 8 * kUnit);
  EXPECT_THROW(pool.take(kUnit), std::bad_alloc);
  pool.free(block);
}

}  // namespace
}  // namespace torch_remote::testing
