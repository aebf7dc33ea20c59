#include "base/token_file.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace torch_remote {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string new_folder() {
  std::string folder = testing::TempDir() + "token_file_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    throw std::runtime_error("mkdtemp");
  return folder;
}

std::string failure_of(const std::string& path) {
  try {
    read_token_file("--token-file", path);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "(it was read)";
}

TEST(TokenFile, IsReadWithoutTheSpaceAroundIt) {
  const std::string path = new_folder() + "/token";
  std::ofstream(path) << "  0123 4567\n\n";
  EXPECT_EQ(read_token_file("--token-file", path).token, "0123 4567");
}

// Promise 3.
TEST(TokenFile, TellsWhetherOthersMayReadIt) {
  const std::string path = new_folder() + "/token";
  std::ofstream(path) << "0123";
  ::chmod(path.c_str(), 0640);
  EXPECT_FALSE(read_token_file("--token-file", path).is_private);
  ::chmod(path.c_str(), 0600);
  EXPECT_TRUE(read_token_file("--token-file", path).is_private);
}

// Promise 3.
TEST(TokenFile, TellsWhetherItIsAnotherUsers) {
  const std::string path = new_folder() + "/token";
  std::ofstream(path) << "0123";
  EXPECT_TRUE(read_token_file("--token-file", path).is_trusted);
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a file to another user";
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  EXPECT_FALSE(read_token_file("--token-file", path).is_trusted);
}

TEST(TokenFile, WhatCannotBeReadIsToldWithTheSettingThePathAndTheReason) {
  const std::string folder = new_folder();
  EXPECT_THAT(failure_of(folder + "/none"),
              AllOf(HasSubstr("--token-file: "), HasSubstr(folder + "/none"),
                    HasSubstr("No such file or directory")));
  EXPECT_THAT(failure_of(folder), HasSubstr("Is a directory"));
}

TEST(TokenFile, ATildeIsTheHomeOfTheUser) {
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(expand_home("~/token"), "/home/me/token");
  EXPECT_EQ(expand_home("~"), "/home/me");
  EXPECT_EQ(expand_home("~other/token"), "~other/token");
  EXPECT_EQ(expand_home("/a/~/token"), "/a/~/token");
  EXPECT_EQ(expand_home(""), "");
  if (home == nullptr)
    ::unsetenv("HOME");
  else
    ::setenv("HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace torch_remote
