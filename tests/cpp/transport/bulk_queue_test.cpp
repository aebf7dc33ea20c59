#include "transport/bulk_queue.h"

#include <array>

#include <gtest/gtest.h>

namespace torch_remote::transport {
namespace {

const std::array<std::byte, 10> kBytes{};

std::shared_ptr<SentBulk> counted(int& done) {
  return std::make_shared<SentBulk>(nullptr, [&done](bool) { ++done; });
}

TEST(BulkQueue, ABulkIsSentInChunksOfALane) {
  int done = 0;
  BulkQueue queue;
  queue.push({7, 100}, kBytes, true, counted(done));
  const auto first = queue.next(6);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->prefix.lane, 7U);
  EXPECT_EQ(first->prefix.offset, 100U);
  EXPECT_EQ(first->bytes.size(), 6U);
  EXPECT_FALSE(first->ends_bulk);
  queue.take(*first);
  const auto second = queue.next(6);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->prefix.offset, 106U);
  EXPECT_EQ(second->bytes.data(), kBytes.data() + 6);
  EXPECT_TRUE(second->ends_bulk);
  EXPECT_TRUE(second->ends_lane);
  queue.take(*second);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.next(6));
  EXPECT_EQ(done, 1);
}

TEST(BulkQueue, APartThatIsNotTheLastDoesNotEndTheLane) {
  int done = 0;
  BulkQueue queue;
  queue.push({7, 0}, kBytes, false, counted(done));
  const auto chunk = queue.next(100);
  ASSERT_TRUE(chunk);
  EXPECT_TRUE(chunk->ends_bulk);
  EXPECT_FALSE(chunk->ends_lane);
}

TEST(BulkQueue, BulksAreSentInTheirOrder) {
  int done = 0;
  BulkQueue queue;
  queue.push({1, 0}, kBytes, true, counted(done));
  queue.push({2, 0}, kBytes, true, counted(done));
  EXPECT_EQ(queue.next(100)->prefix.lane, 1U);
  queue.take(*queue.next(100));
  EXPECT_EQ(queue.next(100)->prefix.lane, 2U);
}

}  // namespace
}  // namespace torch_remote::transport
