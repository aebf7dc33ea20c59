#include "client/backend/sent_work.h"

#include <future>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace torch_remote::client {
namespace {

constexpr std::chrono::seconds kPatience{20};

// What was sent, by tag.
class Sent {
 public:
  void add(int tag) {
    MutexLock lock(mutex_);
    tags_.push_back(tag);
  }

  std::vector<int> tags() {
    MutexLock lock(mutex_);
    return tags_;
  }

 private:
  Mutex mutex_;
  std::vector<int> tags_ GUARDED_BY(mutex_);
};

TEST(Receives, AreSentInOrderUpToTheOneThatIsWaitedFor) {
  Sent sent;
  Receives receives([&](const Receive& receive) { sent.add(receive.tag); });
  EXPECT_EQ(receives.add({{}, 0, 11}), 1U);
  EXPECT_EQ(receives.add({{}, 0, 12}), 2U);
  EXPECT_EQ(receives.add({{}, 0, 13}), 3U);
  EXPECT_EQ(receives.last(), 3U);
  receives.flush(2);
  EXPECT_EQ(sent.tags(), (std::vector<int>{11, 12}));
  receives.flush(1);
  receives.flush(3);
  EXPECT_EQ(sent.tags(), (std::vector<int>{11, 12, 13}));
  EXPECT_EQ(receives.last(), 3U);
}

TEST(Receives, AWaitReturnsOnlyWhenAnotherThreadHasSentItsReceive) {
  Sent sent;
  std::promise<void> begun;
  std::promise<void> may_go_on;
  Receives receives([&, go_on = may_go_on.get_future().share()](const Receive& receive) {
    if (receive.tag == 1) {
      begun.set_value();
      go_on.wait_for(kPatience);
    }
    sent.add(receive.tag);
  });
  receives.add({{}, 0, 1});
  receives.add({{}, 0, 2});
  std::thread first([&] { receives.flush(2); });
  ASSERT_EQ(begun.get_future().wait_for(kPatience), std::future_status::ready);
  std::vector<int> seen;
  std::thread second([&] {
    receives.flush(2);
    seen = sent.tags();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a wrong flush() returns meanwhile
  may_go_on.set_value();
  first.join();
  second.join();
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
}

TEST(Receives, WhatCouldNotBeSentIsSentByTheNextWait) {
  Sent sent;
  bool is_broken = true;
  Receives receives([&](const Receive& receive) {
    if (is_broken)
      throw std::runtime_error("an earlier call has failed");
    sent.add(receive.tag);
  });
  receives.add({{}, 0, 1});
  receives.add({{}, 0, 2});
  EXPECT_THROW(receives.flush(2), std::runtime_error);
  is_broken = false;
  receives.flush(2);
  EXPECT_EQ(sent.tags(), (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace torch_remote::client
