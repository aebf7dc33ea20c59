#include "server/listener/session_logs.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "base/log.h"

namespace torch_remote::server {
namespace {

using testing::HasSubstr;

class SessionLogsTest : public testing::Test {
 protected:
  void SetUp() override {
    SessionLogs::Pipe pipe = SessionLogs::make_pipe();
    writer_ = std::move(pipe.writer);
    logs_.add(7, std::move(pipe.reader), "spare 7");
  }

  void write(const std::string& text) const {
    ASSERT_EQ(::write(writer_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // What `action` makes the listener write.
  template <typename Action>
  static std::string written(const Action& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }

  // As the listener does after poll().
  void read() {
    std::vector<pollfd> polled(2, pollfd{-1, 0, 0});
    logs_.add_polled(polled);
    ::poll(polled.data(), polled.size(), 0);
    logs_.read(polled);
  }

  SessionLogs logs_;
  Fd writer_;
};

// Promise 12.
TEST_F(SessionLogsTest, EachLineHasTheNameOfItsSessionAndNothingThatATerminalObeys) {
  write("loading\n");
  EXPECT_EQ(written([&] { logs_.begin_session(7, "1a2b3c4d", "10.0.0.1"); }),
            "[spare 7] loading\n");
  write("one\r\nerror [5e6f7a8b] forged\x1b[2J\xc2\x9b\n");
  EXPECT_EQ(written([&] { read(); }),
            "[1a2b3c4d] one\\x0d\n[1a2b3c4d] error [5e6f7a8b] forged\\x1b[2J\\u009b\n");
}

// Promise 12.
TEST_F(SessionLogsTest, ALineIsWrittenWhenItIsWholeAndTheLastOneAlsoWhenItIsNot) {
  write("a begin");
  EXPECT_EQ(written([&] { read(); }), "");
  write("ning\nlast words");
  EXPECT_EQ(written([&] { read(); }), "[spare 7] a beginning\n");
  EXPECT_EQ(written([&] { logs_.end(7); }), "[spare 7] last words\n");
}

TEST_F(SessionLogsTest, ALongLineIsWrittenAsSeveral) {
  write(std::string(SessionLogs::kMaxLine + 1, 'x') + "\n");
  EXPECT_EQ(written([&] { read(); }),
            "[spare 7] " + std::string(SessionLogs::kMaxLine, 'x') + "\n[spare 7] x\n");
}

// Promise 12.
TEST_F(SessionLogsTest, ANewSessionBringsItsPeerNoNewAllowance) {
  constexpr int kSessions = 20;
  std::string flood;
  for (int i = 0; i < static_cast<int>(LogAllowance::kLines); ++i)
    flood += "x\n";
  const auto lines_of = [&](const std::string& peer) {
    const std::string text = written([&] {
      logs_.begin_session(7, "1a2b3c4d", peer);
      write(flood);
      read();
    });
    return std::count(text.begin(), text.end(), 'x');
  };
  int64_t lines = 0;
  for (int i = 0; i < kSessions; ++i)
    lines += lines_of("10.0.0.1");
  EXPECT_GE(lines, LogAllowance::kOfPeer * LogAllowance::kLines);
  EXPECT_LT(lines, (LogAllowance::kOfPeer + 2) * LogAllowance::kLines);
  EXPECT_EQ(lines_of("10.0.0.2"), static_cast<int64_t>(LogAllowance::kLines));
}

// Promise 12.
TEST_F(SessionLogsTest, LinesBeyondTheLimitAreLeftOutAndCounted) {
  constexpr int kMore = 500;
  std::string flood;
  for (int i = 0; i < static_cast<int>(LogAllowance::kLines) + kMore; ++i)
    flood += "x\n";
  write(flood);
  const std::string text = written([&] { read(); });
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, static_cast<long>(LogAllowance::kLines));
  EXPECT_LE(lines, static_cast<long>(LogAllowance::kLines) + 50);
  const std::string rest = written([&] { logs_.end(7); });
  EXPECT_THAT(rest, HasSubstr("lines of a session were left out of=\"spare 7\" lines="));
}

// Promise 12.
TEST_F(SessionLogsTest, EveryLineIsWrittenOrCounted) {
  const int64_t lines = 2 * static_cast<int64_t>(LogAllowance::kLines);
  std::string flood;
  for (int64_t i = 0; i < lines; ++i)
    flood += "line\n";
  write(flood + "the beginning of ");
  std::string text = written([&] { read(); });
  write("the last one\n");
  text += written([&] { logs_.end(7); });
  const size_t told = text.find(" lines=");
  ASSERT_NE(told, std::string::npos) << text;
  int64_t left_out = 0;
  std::from_chars(text.data() + told + 7, text.data() + text.size(), left_out);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n') - 1 + left_out, lines + 1);
}

double cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// Promise 12.
TEST_F(SessionLogsTest, APipeFullOfEmptyLinesTakesTheListenerLessThanAMillisecond) {
  constexpr int kTries = 10;
  double least = 1;
  for (int i = 0; i < kTries; ++i) {
    written([&] { logs_.begin_session(7, "1a2b3c4d", std::to_string(i)); });  // a new allowance
    write(std::string(60000, '\n'));
    const double begin = cpu_seconds();
    read();
    least = std::min(least, cpu_seconds() - begin);
  }
  EXPECT_LT(least, 1e-3);
}

// Promise 12.
TEST_F(SessionLogsTest, OneThatWritesTooMuchIsNotReadForAWhile) {
  write(std::string(60000, '\n'));
  EXPECT_EQ(written([&] { read(); }), "");
  write("x");
  std::vector<pollfd> polled(2, pollfd{-1, 0, 0});
  logs_.add_polled(polled);
  EXPECT_EQ(polled.size(), 2U);
}

// Promise 12.
TEST_F(SessionLogsTest, WritingNeverWaitsAndReadingGoesOnAfterTheEndOfTheOtherSide) {
  const std::string page(4096, 'x');
  while (::write(writer_.get(), page.data(), page.size()) > 0) {
  }
  EXPECT_EQ(errno, EAGAIN);
  writer_.reset();
  written([&] { logs_.end(7); });
  read();
  std::vector<pollfd> polled(2);
  logs_.add_polled(polled);
  EXPECT_EQ(polled.size(), 2U);  // it is forgotten
}

TEST(LogAllowance, GrowsWithTimeUpToItsBeginning) {
  const LogAllowance::Clock::time_point begin{};
  LogAllowance allowance(begin);
  const auto admitted = [&](LogAllowance::Clock::time_point now) {
    int lines = 0;
    for (; allowance.has_room(10, now); ++lines)
      allowance.note(10);
    return lines;
  };
  EXPECT_EQ(admitted(begin), static_cast<int>(LogAllowance::kLines));
  EXPECT_EQ(admitted(begin + std::chrono::seconds(10)), 20);
  EXPECT_EQ(admitted(begin + std::chrono::hours(1)), static_cast<int>(LogAllowance::kLines));
  const auto later = begin + std::chrono::hours(2);
  constexpr auto kAll = static_cast<size_t>(LogAllowance::kBytes);
  EXPECT_FALSE(allowance.has_room(kAll + 1, later));
  EXPECT_TRUE(allowance.has_room(kAll, later));
  EXPECT_TRUE(allowance.is_full(later));
  allowance.note(kAll);
  EXPECT_FALSE(allowance.has_room(10, later));
  EXPECT_FALSE(allowance.is_full(later));
}

}  // namespace
}  // namespace torch_remote::server
