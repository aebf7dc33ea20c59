#include "server/listener/listening_socket.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/platform.h"
#include "transport/dial.h"

namespace torch_remote::server {
namespace {

using Clock = ListeningSocket::Clock;

class ListeningSocketTest : public testing::Test {
 protected:
  ListeningSocketTest() {
    std::string folder = testing::TempDir() + "socket_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr)
      throw std::runtime_error("mkdtemp");
    path = folder + "/s";
  }

  std::string path;
};

// Takes all descriptors that this process may have.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{64, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (Fd taken(::dup(0)); taken; taken = Fd(::dup(0)))
      taken_.push_back(std::move(taken));
  }

  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<Fd> taken_;
};

// Promise 14.
TEST_F(ListeningSocketTest, ItsClientsCannotSendDescriptors) {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  ListeningSocket listening("unix://" + path);
  const Fd client = stream_socket(AF_UNIX);
  const int no = 0;
  if (::setsockopt(client.get(), SOL_SOCKET, kPassRights, &no, sizeof no) != 0)
    GTEST_SKIP() << "this kernel has no SO_PASSRIGHTS (6.16)";
  sockaddr_un address{AF_UNIX, {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* const place = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::connect(client.get(), place, sizeof address), 0);
  const std::byte letter{};
  const std::array passed{0};
  EXPECT_EQ(pass_descriptors(client, std::span(&letter, 1), passed), Passed::kGone);
  const Fd accepted = listening.accept(Clock::now());
  EXPECT_EQ(pass_descriptors(client, std::span(&letter, 1), passed), Passed::kGone);
  EXPECT_EQ(::send(client.get(), &letter, 1, 0), 1);
}

// Promise 2.
TEST_F(ListeningSocketTest, WithoutAFreeDescriptorItRestsAndTheClientIsAcceptedLater) {
  ListeningSocket listening("unix://" + path);
  const auto client = transport::dial(listening.address(), Clock::now() + std::chrono::seconds(10));
  const Clock::time_point now = Clock::now();
  {
    const NoDescriptors none;
    EXPECT_FALSE(listening.accept(now));
  }
  EXPECT_TRUE(listening.rests(now));
  EXPECT_EQ(listening.polled(now), -1);

  const Clock::time_point later = now + ListeningSocket::kRest;
  EXPECT_FALSE(listening.rests(later));
  EXPECT_GE(listening.polled(later), 0);
  EXPECT_TRUE(listening.accept(later));
  EXPECT_FALSE(listening.accept(later));  // nobody is there
  EXPECT_FALSE(listening.rests(later));
}

// Promise 11.
TEST_F(ListeningSocketTest, OnlyItsOwnSocketFileIsRemoved) {
  const ListeningSocket first("unix://" + path);
  ::unlink(path.c_str());
  const ListeningSocket second("unix://" + path);

  first.remove();
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  second.remove();
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace torch_remote::server
