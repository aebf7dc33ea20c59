#include "server/listener/limited_log.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

// Promise 12.
TEST(LimitedLog, LinesOverTheLimitAreLeftOutAndCounted) {
  LimitedLog lines;
  const LimitedLog::Clock::time_point begin{};
  for (uint64_t i = 0; i < LimitedLog::kMostLines; ++i)
    EXPECT_TRUE(lines.admit("a guess", "", begin));
  for (int i = 0; i < 400; ++i)
    EXPECT_FALSE(lines.admit("a guess", "", begin));
  EXPECT_TRUE(lines.admit("another event", "", begin));

  EXPECT_THAT(lines.take_left_out(begin), IsEmpty());
  const auto later = begin + LimitedLog::kWindow;
  EXPECT_THAT(lines.take_left_out(later), ElementsAre(Pair("a guess", 400)));
  EXPECT_THAT(lines.take_left_out(later), IsEmpty());
  EXPECT_TRUE(lines.admit("a guess", "", later));
}

// Promise 12.
TEST(LimitedLog, OnePeerDoesNotHideTheLinesOfOthersAndAllTogetherAreLimited) {
  LimitedLog lines;
  const LimitedLog::Clock::time_point begin{};
  for (int i = 0; i < 400; ++i)
    lines.admit("a crash", "10.0.0.1", begin);
  EXPECT_TRUE(lines.admit("a crash", "10.0.0.2", begin));

  uint64_t written = LimitedLog::kMostLines + 1;
  for (int i = 0; i < 400; ++i)
    written += lines.admit("a crash", "many " + std::to_string(i), begin) ? 1 : 0;
  EXPECT_EQ(written, LimitedLog::kMostOfAll);
  const auto later = begin + LimitedLog::kWindow;
  EXPECT_THAT(lines.take_left_out(later), ElementsAre(Pair("a crash", 801 - written)));
}

}  // namespace
}  // namespace torch_remote::server
