#include "server/listener/half_open.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/platform.h"

namespace torch_remote::server {
namespace {

class HalfOpenTest : public testing::Test {
 protected:
  HalfOpen connection(const std::string& peer, bool is_waiting) {
    auto [ours, theirs] = socket_pair();
    HalfOpen made(std::move(theirs), false, HalfOpen::Clock::now());
    made.peer = peer;
    made.is_whole = is_waiting;
    if (is_waiting)
      made.served_at = made.deadline;
    clients_.push_back(std::move(ours));
    return made;
  }

  void fill(const std::string& peer, bool is_waiting) {
    while (all_.size() < kMaxHalfOpen)
      all_.push_back(connection(peer, is_waiting));
  }

  // Adds a connection of this peer. Returns the descriptors of the one that is ended and of the
  // newcomer; -1: none was ended.
  std::pair<int, int> add(const std::string& peer) {
    HalfOpen newcomer = connection(peer, false);
    const int number = newcomer.socket.get();
    const auto ended = add_one(all_, std::move(newcomer));
    return {ended ? ended->socket.get() : -1, number};
  }

  std::deque<HalfOpen> all_;
  std::vector<Fd> clients_;  // the other ends
};

// Promise 2.
TEST_F(HalfOpenTest, WhoWaitsIsNotEndedForTheNextConnectionOfItsPeer) {
  fill("one", true);
  for (int i = 0; i < 3; ++i) {
    const auto [ended, newcomer] = add("one");
    EXPECT_EQ(ended, newcomer);
  }
}

// Promise 2.
TEST_F(HalfOpenTest, ANewcomerOfAnotherPeerEndsTheOneThatHasWaitedLeast) {
  fill("one", true);
  const int newest = all_.back().socket.get();
  EXPECT_EQ(add("other").first, newest);
  EXPECT_EQ(all_.back().peer, "other");
}

TEST_F(HalfOpenTest, TheOldestSilentOneOfTheBusiestPeerIsEndedFirst) {
  all_.push_back(connection("other", false));
  all_.push_back(connection("one", true));
  fill("one", false);
  const int oldest = all_[2].socket.get();
  EXPECT_EQ(add("one").first, oldest);
}

// Promise 2.
TEST_F(HalfOpenTest, AWaitingClientThatHasHungUpIsGone) {
  HalfOpen client = connection("one", true);
  EXPECT_EQ(client.read(), HalfOpen::Progress::kComplete);
  clients_.back().reset();
  EXPECT_EQ(client.read(), HalfOpen::Progress::kGone);
}

}  // namespace
}  // namespace torch_remote::server
