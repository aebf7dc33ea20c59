#include "base/landlock.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/call_filter.h"

namespace torch_remote {
namespace {

namespace fs = std::filesystem;
using Access = FileRule::Access;

class Landlock : public ::testing::Test {
 protected:
  void SetUp() override {
    if (landlock_abi() == 0)
      GTEST_SKIP() << "this kernel has no Landlock";
    fs::create_directories(folder_ / "open");
    for (const char* const name : {"open/file", "closed"})
      std::ofstream(folder_ / name) << "text";
  }

  void TearDown() override { fs::remove_all(folder_); }

  // Opens the file in a process of its own that is restricted to the rules. Returns errno; 0: it
  // can be opened.
  int error_of(const std::vector<FileRule>& rules, const fs::path& file, int flags) const {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        renounce_privileges();
        restrict_files(rules);
        ::_exit(::open(file.c_str(), flags, 0600) < 0 ? errno : 0);
      } catch (const std::exception&) {
        ::_exit(255);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("torch-remote-landlock-" + std::to_string(::getpid()));
};

// Promise 14.
TEST_F(Landlock, OnlyWhatARuleNamesCanBeRead) {
  const std::vector<FileRule> rules{{folder_ / "open", Access::kRead},
                                    {folder_ / "missing", Access::kRead}};
  EXPECT_EQ(error_of(rules, folder_ / "open/file", O_RDONLY), 0);
  EXPECT_EQ(error_of(rules, folder_ / "open", O_RDONLY | O_DIRECTORY), 0);
  EXPECT_EQ(error_of(rules, folder_ / "open/file", O_RDWR), EACCES);
  EXPECT_EQ(error_of(rules, folder_ / "closed", O_RDONLY), EACCES);
  EXPECT_EQ(error_of(rules, folder_ / "open/../closed", O_RDONLY), EACCES);
}

TEST_F(Landlock, WhatCanBeWrittenCannotBeReadOrMade) {
  const std::vector<FileRule> rules{{folder_ / "open", Access::kWriteOnly}};
  EXPECT_EQ(error_of(rules, folder_ / "open/file", O_WRONLY | O_CREAT | O_TRUNC), 0);
  EXPECT_EQ(error_of(rules, folder_ / "open/file", O_RDONLY), EACCES);
  EXPECT_EQ(error_of(rules, folder_ / "open/new", O_WRONLY | O_CREAT), EACCES);
}

TEST_F(Landlock, AThreadOfThisProcessCanBeGivenAName) {  // as CUDA's driver does at its start
  const std::vector<FileRule> rules{{"/proc/self/task", Access::kWriteOnly}};
  const pid_t child = ::fork();
  if (child == 0) {
    renounce_privileges();
    restrict_files(rules);
    const std::string name = "/proc/self/task/" + std::to_string(::gettid()) + "/comm";
    ::_exit(::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600) < 0 ? errno : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Landlock, ATraceTellsWhatCannotBeOpened) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    renounce_privileges();
    restrict_files({{folder_ / "open", Access::kRead}});
    trace_opened_files();
    const bool is_open = ::open((folder_ / "open/file").c_str(), O_RDONLY) >= 0;
    const bool is_refused = ::open((folder_ / "closed").c_str(), O_RDONLY) < 0 && errno == EACCES;
    ::_exit(is_open && is_refused ? 0 : 1);
  }
  ::close(ends[1]);
  std::array<char, 1000> told{};
  EXPECT_GT(::read(ends[0], told.data(), told.size() - 1), 0);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(std::string(told.data()).find(folder_ / "closed"), std::string::npos);
  EXPECT_EQ(std::string(told.data()).find("open/file"), std::string::npos);
}

TEST_F(Landlock, ARuleCanNameOneFile) {
  const std::vector<FileRule> rules{{folder_ / "closed", Access::kRead},
                                    {"/dev/null", Access::kDevice}};
  EXPECT_EQ(error_of(rules, folder_ / "closed", O_RDONLY), 0);
  EXPECT_EQ(error_of(rules, folder_ / "open/file", O_RDONLY), EACCES);
  EXPECT_EQ(error_of(rules, "/dev/null", O_RDWR), 0);
}

TEST_F(Landlock, FilesCanBeMadeInAFolderForThem) {
  const std::vector<FileRule> rules{{folder_ / "open", Access::kStore}};
  EXPECT_EQ(error_of(rules, folder_ / "open/new", O_WRONLY | O_CREAT | O_EXCL), 0);
  EXPECT_EQ(error_of(rules, folder_ / "new", O_WRONLY | O_CREAT | O_EXCL), EACCES);
}

// Promise 14.
TEST_F(Landlock, TheOwnEntryOfProcIsNotAnothers) {
  const std::vector<FileRule> rules{{"/proc/self", Access::kRead}};
  EXPECT_EQ(error_of(rules, "/proc/self/maps", O_RDONLY), 0);
  EXPECT_EQ(error_of(rules, "/proc/thread-self/stat", O_RDONLY), 0);
  EXPECT_EQ(error_of(rules, "/proc/" + std::to_string(::getpid()) + "/stat", O_RDONLY), EACCES);
}

TEST_F(Landlock, TheThreadsOfAProcessAreCounted) {
  EXPECT_GE(count_threads(), 1);
}

}  // namespace
}  // namespace torch_remote
