#include "client/link/open.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"
#include "transport/address.h"
#include "transport/dial.h"

namespace torch_remote::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uid_t kOther = 54321;

// A socket on which this process listens, and which everybody can connect to.
class ServerUserTest : public testing::Test {
 protected:
  ServerUserTest() {
    if (::geteuid() == 0)
      listens_ = listen();
  }

  ~ServerUserTest() override { ::unlink(path_.c_str()); }

  void SetUp() override {
    if (::geteuid() != 0)
      GTEST_SKIP() << "only root can be another user";
  }

  Fd listen() {
    path_ = "/tmp/server_user_" + std::to_string(::getpid());
    transport::Address address;
    address.scheme = "unix";
    address.path = path_;
    Fd socket = transport::listen_on(address);
    ::chmod(path_.c_str(), 0777);
    return socket;
  }

  Fd connect() const {
    Fd socket = stream_socket(AF_UNIX);
    const auto address = transport::SocketAddress::unix_path(path_);
    EXPECT_EQ(::connect(socket.get(), address.get(), address.size()), 0);
    return socket;
  }

  std::string path_;
  Fd listens_;
};

TEST_F(ServerUserTest, AServerOfThisUserOrOfRootIsTrusted) {
  EXPECT_NO_THROW(check_server_user(connect()));
  ASSERT_EQ(::seteuid(kOther), 0);
  EXPECT_NO_THROW(check_server_user(connect()));
  ASSERT_EQ(::seteuid(0), 0);
}

TEST_F(ServerUserTest, AServerOfAnotherUserIsAnErrorThatNamesBoth) {
  listens_.reset();
  ::unlink(path_.c_str());
  ASSERT_EQ(::seteuid(kOther), 0);
  listens_ = listen();
  ASSERT_EQ(::seteuid(0), 0);
  try {
    check_server_user(connect());
    FAIL();
  } catch (const AnotherUser& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("uid 54321"), HasSubstr("user root (uid 0)"),
                                    HasSubstr("--token-file")));
  }
}

}  // namespace
}  // namespace torch_remote::client
