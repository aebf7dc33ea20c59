#include "transport/keepalive.h"

#include <gtest/gtest.h>

namespace torch_remote::transport {
namespace {

using std::chrono::seconds;
using Verdict = Keepalive::Verdict;

const Keepalive::Clock::time_point kStart = Keepalive::Clock::time_point() + std::chrono::hours(1);

TEST(Keepalive, APeerIsAskedAfterAThirdOfTheLimitAndGoneAfterTheLimit) {
  Keepalive keepalive(seconds(30), kStart);
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(1)), Verdict::kHeard);
  EXPECT_EQ(keepalive.next(), kStart + seconds(10));
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(10)), Verdict::kAsk);
  EXPECT_EQ(keepalive.next(), kStart + seconds(30));
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(30)), Verdict::kGone);
}

TEST(Keepalive, APeerIsAskedOnceForEachSilence) {
  Keepalive keepalive(seconds(30), kStart);
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(10)), Verdict::kAsk);
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(11)), Verdict::kHeard);
  const auto answered = kStart + seconds(12);
  EXPECT_EQ(keepalive.judge(answered, kStart + seconds(13)), Verdict::kHeard);
  EXPECT_EQ(keepalive.judge(answered, kStart + seconds(23)), Verdict::kAsk);
}

TEST(Keepalive, SilenceOfABrokenConnectionDoesNotCount) {
  Keepalive keepalive(seconds(30), kStart);
  keepalive.begin_again(kStart + seconds(100));
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(101)), Verdict::kHeard);
  EXPECT_EQ(keepalive.next(), kStart + seconds(110));
}

TEST(Keepalive, ThePeerIsNotBlamedForTimeInWhichThisProcessDidNotRun) {
  Keepalive keepalive(seconds(30), kStart);
  keepalive.judge(kStart, kStart);
  keepalive.note_wake(kStart + seconds(21));
  EXPECT_EQ(keepalive.judge(kStart, kStart + seconds(31)), Verdict::kAsk);

  Keepalive punctual(seconds(30), kStart);
  punctual.judge(kStart, kStart);
  punctual.note_wake(kStart + seconds(20));
  EXPECT_EQ(punctual.judge(kStart, kStart + seconds(31)), Verdict::kGone);
}

}  // namespace
}  // namespace torch_remote::transport
