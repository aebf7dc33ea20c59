#include "transport/ack_policy.h"

#include <gtest/gtest.h>

namespace torch_remote::transport {
namespace {

using Clock = AckPolicy::Clock;

const Clock::time_point kNow = Clock::time_point() + std::chrono::hours(1);

bool at_once(const AckPolicy& policy) {
  return policy.due() == Clock::time_point::min();
}

TEST(AckPolicy, NothingIsDueWhenNothingWasReceived) {
  EXPECT_FALSE(AckPolicy().due());
}

TEST(AckPolicy, TheFirstFrameStartsTheClock) {
  AckPolicy policy;
  policy.received(100, false, kNow);
  policy.received(100, false, kNow + std::chrono::milliseconds(10));
  EXPECT_EQ(policy.due(), kNow + std::chrono::milliseconds(20));
}

TEST(AckPolicy, ManyFramesOrBytesAreAcknowledgedAtOnce) {
  AckPolicy frames;
  for (int i = 0; i < 7; ++i)
    frames.received(1, false, kNow);
  EXPECT_FALSE(at_once(frames));
  frames.received(1, false, kNow);
  EXPECT_TRUE(at_once(frames));

  AckPolicy bytes;
  bytes.received(1 << 20, false, kNow);
  EXPECT_TRUE(at_once(bytes));
}

TEST(AckPolicy, TheLastChunkIsAcknowledgedAtOnce) {
  AckPolicy policy;
  policy.received(1, true, kNow);
  EXPECT_TRUE(at_once(policy));
}

TEST(AckPolicy, EightAppliedFramesAreToldAtOnce) {
  AckPolicy policy;
  for (int i = 0; i < 7; ++i)
    policy.applied(kNow);
  EXPECT_EQ(policy.due(), kNow + std::chrono::milliseconds(20));
  policy.applied(kNow);
  EXPECT_TRUE(at_once(policy));
}

TEST(AckPolicy, AFrameThatWasSentCarriesTheAcknowledgement) {
  AckPolicy policy;
  policy.received(1, true, kNow);
  policy.sent();
  EXPECT_FALSE(policy.due());
}

}  // namespace
}  // namespace torch_remote::transport
