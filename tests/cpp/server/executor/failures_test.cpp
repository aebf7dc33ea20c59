#include "server/executor/failures.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace torch_remote::server {
namespace {

TEST(Failures, WhatTheyKeepIsCountedUntilNobodyNeedsIt) {
  Replies replies;
  const auto counted = std::make_shared<std::atomic<uint64_t>>(7);
  StoppedThreads threads(replies, counted);
  wire::Error error;
  error.message = std::string(1000, 'x');
  const Cause first = threads.keep(error);
  const uint64_t one = *counted - 7;
  EXPECT_GE(one, 1000);
  {
    const Cause second = threads.keep(error);
    const Cause shared = second;
    EXPECT_EQ(*counted, 7 + 2 * one);
  }
  EXPECT_EQ(*counted, 7 + one);
  threads.set_current(3);
  EXPECT_EQ(threads.stop(error, 1)->message, error.message);
  EXPECT_EQ(*counted, 7 + 2 * one);
  threads.go_on(3);
  EXPECT_EQ(*counted, 7 + one);
}

// Promise 7.
TEST(Failures, TooMuchThatTheyKeepEndsTheSession) {
  Replies replies;
  StoppedThreads threads(replies);
  wire::Error error;
  error.message = std::string(16 << 10, 'x');
  std::vector<Cause> kept;
  EXPECT_THROW(
      {
        while (kept.size() <= kMaxFailureBytes / error.message.size())
          kept.push_back(threads.keep(error));
      },
      ProtocolError);
  kept.clear();
  threads.keep(error);
}

}  // namespace
}  // namespace torch_remote::server
