#include "transport/receive_ledger.h"

#include <gtest/gtest.h>

namespace torch_remote::transport {
namespace {

using Clock = ReceiveLedger::Clock;

const Clock::time_point kNow = Clock::time_point() + std::chrono::hours(1);

FrameHeader frame(uint64_t sequence) {
  FrameHeader header;
  header.kind = FrameKind::kMessages;
  header.sequence = sequence;
  return header;
}

TEST(ReceiveLedger, FramesComeInTheirOrder) {
  ReceiveLedger ledger;
  EXPECT_NO_THROW(ledger.check_next(frame(1)));
  EXPECT_THROW(ledger.check_next(frame(2)), ProtocolError);
  ledger.note_received(frame(1), kNow);
  EXPECT_THROW(ledger.check_next(frame(1)), ProtocolError);
  EXPECT_NO_THROW(ledger.check_next(frame(2)));
  EXPECT_NO_THROW(ledger.check_next(FrameHeader()));  // an acknowledgement has no number
}

TEST(ReceiveLedger, AFrameIsAppliedAfterItIsReceived) {
  ReceiveLedger ledger;
  EXPECT_FALSE(ledger.note_applied(1, kNow));
  ledger.note_received(frame(1), kNow);
  EXPECT_TRUE(ledger.note_applied(1, kNow));
  EXPECT_EQ(ledger.applied(), 1U);
  EXPECT_TRUE(ledger.note_applied(0, kNow));
  EXPECT_EQ(ledger.applied(), 1U);
}

TEST(ReceiveLedger, AHeaderWithAllCountersIsAnAcknowledgement) {
  ReceiveLedger ledger;
  ledger.note_received(frame(1), kNow);
  ledger.note_applied(1, kNow);
  ASSERT_TRUE(ledger.ack_due());
  const FrameHeader older = ledger.make_header(FrameKind::kAck, 0, ledger.told());
  EXPECT_EQ(older.acknowledged, 1U);
  EXPECT_EQ(older.applied, 0U);
  EXPECT_TRUE(ledger.ack_due());  // it has not said that frame 1 is applied
  ledger.note_told(1);
  EXPECT_EQ(ledger.make_header(FrameKind::kAck, 0, ledger.told()).applied, 1U);
  EXPECT_FALSE(ledger.ack_due());
}

TEST(ReceiveLedger, CountersAreSentAgainOverANewStream) {
  ReceiveLedger ledger;
  ledger.note_resumed();
  EXPECT_EQ(ledger.ack_due(), Clock::time_point::min());
}

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
