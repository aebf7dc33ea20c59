#include "base/error.h"

#include <cerrno>
#include <system_error>

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

TEST(Error, AnInternalErrorNamesTheProjectToBlame) {
  try {
    check_internal(false, "two is three");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("two is three"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("this is a bug in torch-remote"), std::string::npos);
  }
  EXPECT_NO_THROW(check_internal(true, "one is one"));
}

TEST(Error, AFailedSystemCallIsDescribed) {
  EXPECT_EQ(describe_errno("reading", ECONNRESET), "reading: Connection reset by peer");
  EXPECT_THROW(throw_connection_errno("x", EPIPE), ConnectionError);
  EXPECT_THROW(throw_system_errno("x", EPIPE), std::system_error);
}

}  // namespace
}  // namespace torch_remote
