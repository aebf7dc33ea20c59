#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torch_remote {
namespace {

using ::testing::MatchesRegex;

TEST(Log, ALineHasLevelNameEventAndFields) {
  EXPECT_EQ(format_log_line(LogLevel::kInfo, "s7", "connected",
                            {{"peer", "tcp://127.0.0.1:1"}, {"frames", 12}, {"note", "two words"}}),
            "info [s7] connected peer=tcp://127.0.0.1:1 frames=12 note=\"two words\"");
}

TEST(Log, APeersTextCannotForgeALine) {
  EXPECT_EQ(format_log_line(LogLevel::kError, "", "closed", {{"reason", "x\nerror \"y\""}}),
            "error closed reason=\"x\\x0aerror \\\"y\\\"\"");
}

TEST(Log, OnlyLevelsFromTheChosenOneOnAreEnabled) {
  set_log_level(LogLevel::kError);
  EXPECT_FALSE(log_enabled(LogLevel::kWarning));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  set_log_level(LogLevel::kWarning);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kWarning));
}

TEST(Log, LinesGoToStandardErrorWithTimeAndName) {
  ::testing::internal::CaptureStderr();
  set_log_name("s9");
  log(LogLevel::kError, "hello {}", {{"n", 1}});
  set_log_name("");
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find(" error [s9] hello {} n=1\n"), std::string::npos) << line;
  EXPECT_THAT(line.substr(0, line.find(' ')),
              MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+[.][0-9]+[+-][0-9]+:[0-9]+"));
  EXPECT_EQ(line.find(' '), std::string_view("2026-03-01T12:00:00.123+00:00").size()) << line;
}

}  // namespace
}  // namespace torch_remote
