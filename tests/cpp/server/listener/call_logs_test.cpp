#include "server/listener/call_logs.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torch_remote::server {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class CallLogsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "calls_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    prefix_ = folder + "/calls";
    child_ = start_child();
  }

  void TearDown() override {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }

  // A process whose limit can be set.
  pid_t start_child() {
    const pid_t child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    children_.push_back(child);
    return child;
  }

  static uint64_t limit_of(pid_t child) {
    rlimit limit{};
    EXPECT_EQ(::prlimit(child, RLIMIT_FSIZE, nullptr, &limit), 0);
    return limit.rlim_cur;
  }

  bool is_there(const std::string& session) const {
    return std::filesystem::exists(prefix_ + "." + session);
  }

  LimitedLog log_;
  std::string prefix_;
  pid_t child_ = -1;
  std::vector<pid_t> children_;
};

// Promise 12.
TEST_F(CallLogsTest, TheKernelHoldsASessionToItsShare) {
  CallLogs logs(prefix_, 8, log_, 80 * kMiB);
  const Fd file = logs.begin(child_, "one");
  ASSERT_TRUE(file);
  EXPECT_EQ(limit_of(child_), 10 * kMiB);
}

// Promise 12.
TEST_F(CallLogsTest, FilesOfAllSessionsTogetherAreLimited) {
  CallLogs logs(prefix_, 4, log_, 16 * kMiB);
  int files = 0;
  for (Fd file; (file = logs.begin(child_, std::to_string(files))); ++files) {
    ASSERT_EQ(::ftruncate(file.get(), 2 * kMiB), 0);
    logs.end(child_);
    ASSERT_LT(files, 100);
  }
  EXPECT_EQ(files, 8);
  EXPECT_FALSE(is_there("8"));
}

// Promise 12.
TEST_F(CallLogsTest, SessionsWithoutACallLeaveTheNextOneItsShare) {
  CallLogs logs(prefix_, 4, log_, 16 * kMiB);
  for (int i = 0; i < 4; ++i) {
    const pid_t child = start_child();
    ASSERT_TRUE(logs.begin(child, std::to_string(child)));
    EXPECT_EQ(limit_of(child), 4 * kMiB);
  }
}

TEST_F(CallLogsTest, AFileWithoutACallIsRemovedAndCostsNothing) {
  CallLogs logs(prefix_, 4, log_, 8 * kMiB);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(logs.begin(child_, "one"));
    logs.end(child_);
    EXPECT_FALSE(is_there("one"));
  }
}

// Promise 12.
TEST_F(CallLogsTest, WhatWasWrittenIsNotWrittenOver) {
  CallLogs logs(prefix_, 4, log_, 8 * kMiB);
  const Fd file = logs.begin(child_, "one");
  ASSERT_EQ(::write(file.get(), "call\n", 5), 5);
  ASSERT_EQ(::pwrite(file.get(), "lie!\n", 5, 0), 5);
  EXPECT_EQ(std::filesystem::file_size(prefix_ + ".one"), 10U);
}

TEST_F(CallLogsTest, WithoutAPrefixThereAreNoFiles) {
  CallLogs logs("", 4, log_);
  EXPECT_FALSE(logs.begin(child_, "one"));
}

}  // namespace
}  // namespace torch_remote::server
