#include "server/listener/credentials.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace torch_remote::server {
namespace {

class TokenTest : public testing::Test {
 protected:
  TokenTest() {
    std::string folder = testing::TempDir() + "token_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr)
      throw std::runtime_error("mkdtemp");
    path = folder + "/token";
  }

  std::string path;
};

// Promise 3.
TEST_F(TokenTest, AMissingFileIsMadeForItsOwnerOnly) {
  const std::string token = read_or_make_token(path);

  struct stat made {};

  ASSERT_EQ(::stat(path.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600);
  EXPECT_EQ(token.size(), 64);
}

TEST_F(TokenTest, AFileThatIsThereIsReadWithoutTheSpaceAroundIt) {
  std::ofstream(path) << "  0123456789abcdef0123\n";
  EXPECT_EQ(read_or_make_token(path), "0123456789abcdef0123");
}

TEST_F(TokenTest, TwoFilesHaveDifferentTokens) {
  EXPECT_NE(read_or_make_token(path), read_or_make_token(path + "2"));
  EXPECT_EQ(read_or_make_token(path), read_or_make_token(path));
}

TEST_F(TokenTest, AShortTokenIsRefused) {
  std::ofstream(path) << "short";
  EXPECT_THROW(read_or_make_token(path), std::runtime_error);
}

TEST_F(TokenTest, AFolderThatIsNotThereIsAnErrorThatNamesTheFile) {
  EXPECT_THROW(read_or_make_token(path + "/x/y"), std::runtime_error);
}

}  // namespace
}  // namespace torch_remote::server
