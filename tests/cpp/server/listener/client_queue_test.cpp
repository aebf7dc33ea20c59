#include "server/listener/client_queue.h"

#include <array>
#include <new>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/platform.h"
#include "server/listener/half_open.h"
#include "wire/handshake.h"

namespace torch_remote::server {
namespace {

using Clock = ClientQueue::Clock;
using namespace std::chrono_literals;

// Processes that are none: this one, under other numbers.
class ClientQueueTest : public testing::Test {
 protected:
  // Returns the client's end of the connection.
  Fd add(const std::string& peer, uint64_t bits = wire::kAwaitsProcess) {
    auto [ours, theirs] = socket_pair();
    HalfOpen client(std::move(theirs), false, now_);
    client.peer = peer;
    client.decoded.emplace().route = bits;
    queue_.add(std::move(client), now_);
    return std::move(ours);
  }

  // A session of this peer, whose client has proven nothing. Returns its own page.
  SessionPage& begin(const std::string& peer) {
    const Fd memory = SessionPage::make_memory();
    SessionPage& own = SessionPage::map(memory);
    sessions_.add({next_pid_++, Fd(), SessionPage::view(memory)}, sessions_.new_route(), peer,
                  false);
    return own;
  }

  const Clock::time_point now_ = Clock::now();
  pid_t next_pid_ = 1'000'000;
  PeerDelays delays_;
  LimitedLog log_;
  Sessions sessions_{"", log_};
  ClientQueue queue_;
};

size_t unread(const Fd& client) {
  std::array<std::byte, 64> bytes;
  const ssize_t got = ::recv(client.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

TEST_F(ClientQueueTest, APeerHasFewProcessesThatHaveProvenNothing) {
  std::vector<Fd> clients;
  for (size_t i = 0; i < 2 * kMostUnproven; ++i)
    clients.push_back(add("one"));
  clients.push_back(add("other"));
  EXPECT_EQ(queue_.wanted_processes(delays_, sessions_, now_), kMostUnproven + 1);
  SessionPage& first = begin("one");
  for (size_t i = 1; i < kMostUnproven; ++i)
    begin("one");
  EXPECT_EQ(queue_.wanted_processes(delays_, sessions_, now_), 1);
  EXPECT_EQ(queue_.take_next(sessions_)->peer, "other");
  EXPECT_FALSE(queue_.take_next(sessions_));

  first.mark_begun();
  EXPECT_EQ(sessions_.note_begun(), std::vector<std::string>{"one"});
  EXPECT_EQ(queue_.take_next(sessions_)->peer, "one");
}

TEST_F(ClientQueueTest, ClientsThatUnderstandItAreToldThatTheyWaitAsLongAsTheyDo) {
  const Fd client = add("one");
  const Fd earlier = add("one", 0);  // of a version that does not
  EXPECT_EQ(queue_.tell_waiting(now_), 0);
  EXPECT_EQ(unread(client), 0);
  for (const auto later : {2s, 4s, 600s}) {
    EXPECT_EQ(queue_.tell_waiting(now_ + later), later == 2s ? 2 : 0);
    EXPECT_EQ(queue_.tell_waiting(now_ + later), 0);
    EXPECT_EQ(unread(client), sizeof(wire::WaitingBlock));
  }
  EXPECT_EQ(unread(earlier), 0);
  EXPECT_EQ(queue_.size(), 2);
}

TEST_F(ClientQueueTest, WhoLeavesTheQueueIsTold) {
  Fd leaves = add("one");
  const Fd stays = add("other");
  EXPECT_TRUE(queue_.drop_departed().empty());
  leaves.reset();
  EXPECT_EQ(queue_.drop_departed(), std::vector<std::string>{"one"});
  EXPECT_EQ(queue_.size(), 1);
}

TEST_F(ClientQueueTest, HowASessionThatHasBegunEndsSaysNothingAboutItsPeer) {
  constexpr int kExitedWith3 = 3 << 8;
  SessionPage& begun = begin("one");
  begin("other");
  begun.mark_begun();
  sessions_.note_begun();
  ::new (&begun) SessionPage;  // it was taken over, and takes back that it has begun
  EXPECT_FALSE(sessions_.remove(1'000'000, kExitedWith3).is_stranger);
  const Sessions::Ended stranger = sessions_.remove(1'000'001, 0);
  EXPECT_TRUE(stranger.is_stranger);
  EXPECT_EQ(stranger.peer, "other");
}

}  // namespace
}  // namespace torch_remote::server
