#include "base/peer_limits.h"

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

using namespace std::chrono_literals;

const auto kStart = PeerDelays::Clock::now();

void fail(PeerDelays& delays, const std::string& peer, int times) {
  for (int i = 0; i < times; ++i)
    delays.note_failure(peer, kStart);
}

// Promise 2.
TEST(PeerDelays, APeerThatFailsOftenWaitsAndNoOtherDoes) {
  PeerDelays delays;
  fail(delays, "10.0.0.1", PeerDelays::kFreeFailures - 1);
  EXPECT_EQ(delays.delay_of("10.0.0.1", kStart), 0ms);
  fail(delays, "10.0.0.1", 1);
  EXPECT_EQ(delays.delay_of("10.0.0.1", kStart), 1s);
  EXPECT_EQ(delays.delay_of("10.0.0.2", kStart), 0ms);
  fail(delays, "10.0.0.1", 1);
  EXPECT_EQ(delays.delay_of("10.0.0.1", kStart), 2s);
  fail(delays, "10.0.0.1", 5000);
  EXPECT_EQ(delays.delay_of("10.0.0.1", kStart), PeerDelays::kLongestDelay);
}

TEST(PeerDelays, ASuccessOrAMinuteMakesGood) {
  PeerDelays delays;
  fail(delays, "a", 10);
  fail(delays, "b", 10);
  delays.note_success("a");
  EXPECT_EQ(delays.delay_of("a", kStart), 0ms);
  EXPECT_EQ(delays.delay_of("b", kStart + PeerDelays::kMemory), 0ms);
  delays.note_failure("b", kStart + PeerDelays::kMemory);
  EXPECT_EQ(delays.delay_of("b", kStart + PeerDelays::kMemory), 0ms);
}

TEST(PeerDelays, TheMemoryIsBoundedAndForgetsTheOldestFailureFirst) {
  PeerDelays delays;
  fail(delays, "old", 10);
  for (size_t i = 0; i < 2 * PeerDelays::kMostPeers; ++i)
    delays.note_failure("peer " + std::to_string(i), kStart + 1s);
  EXPECT_EQ(delays.size(), PeerDelays::kMostPeers);
  EXPECT_EQ(delays.delay_of("old", kStart + 1s), 0ms);
}

// Promise 2.
TEST(OldestOfBusiest, IsTheFirstOfThePeerThatHasMost) {
  EXPECT_EQ(oldest_of_busiest({"a"}), 0U);
  EXPECT_EQ(oldest_of_busiest({"a", "b", "b"}), 1U);
  EXPECT_EQ(oldest_of_busiest({"a", "b", "a", "b", "b"}), 1U);
  EXPECT_EQ(oldest_of_busiest({"a", "b"}), 0U);
}

}  // namespace
}  // namespace torch_remote
