#include "client/session/call_window.h"

#include <gtest/gtest.h>

namespace torch_remote::client {
namespace {

using std::chrono::milliseconds;

class CallWindowTest : public ::testing::Test {
 protected:
  // What the client learns at that time.
  void learn(milliseconds at, CallWindow::Totals calls) {
    window.progress(calls, CallWindow::Clock::time_point() + std::chrono::hours(1) + at);
  }

  // How many calls may be under way. The window notes that it has refused one more.
  uint64_t room() {
    uint64_t room = 0;
    while (room < CallWindow::kFull && window.has_room(room))
      ++room;
    return room;
  }

  CallWindow window;
};

TEST_F(CallWindowTest, TheFirstBurstIsSmallUntilTheServerHasDoneSomething) {
  EXPECT_EQ(room(), CallWindow::kFirst);
  learn(milliseconds(1), {200, 100, 0});
  EXPECT_LE(room(), 2 * CallWindow::kFirst);
}

TEST_F(CallWindowTest, AServerWithoutABacklogGetsAFullWindow) {
  learn(milliseconds(150), {5000, 300, 290});
  EXPECT_EQ(room(), CallWindow::kFull);
}

TEST_F(CallWindowTest, WhatIsOnALongLineDoesNotCount) {
  learn(milliseconds(0), {300, 300, 300});
  learn(milliseconds(150), {9000, 400, 395});
  EXPECT_TRUE(window.has_room(9000));
}

TEST_F(CallWindowTest, APauseOfAnyLengthIsNoSlowServer) {
  learn(milliseconds(0), {300, 300, 300});
  learn(std::chrono::hours(2), {5300, 500, 400});  // a backlog, and two hours in which little came
  EXPECT_TRUE(window.has_room(5300));
  learn(std::chrono::hours(2) + milliseconds(10), {6000, 1000, 600});
  EXPECT_GE(room(), 40000U);  // 200 in 10 ms
}

TEST_F(CallWindowTest, AServerWithABacklogGetsTwoSecondsOfWork) {
  learn(milliseconds(0), {1000, 1000, 500});
  learn(milliseconds(100), {2000, 2000, 600});
  EXPECT_EQ(room(), 2000U);
  learn(milliseconds(200), {2500, 2500, 1000});  // 500 in 200 ms
  EXPECT_EQ(room(), 5000U);
}

TEST_F(CallWindowTest, TheRateFollowsTheServer) {
  learn(milliseconds(0), {9000, 9000, 500});
  learn(milliseconds(300), {9000, 9000, 5500});
  learn(milliseconds(500), {9000, 9000, 5700});  // 200 in 200 ms
  EXPECT_EQ(room(), 2000U);
}

TEST_F(CallWindowTest, CallsSentBeforeTheBacklogWasKnownDoNotCountWhileOnTheWire) {
  learn(milliseconds(0), {8000, 1000, 500});
  learn(milliseconds(100), {8000, 2000, 600});  // 1000 in a second
  EXPECT_EQ(room(), 2000U + 6000U);
  learn(milliseconds(200), {9000, 8000, 700});
  EXPECT_EQ(room(), 2000U);
}

TEST_F(CallWindowTest, UntilARateIsKnownTheClientMayDoubleWhatIsUnderWay) {
  learn(milliseconds(0), {1000, 600, 500});
  EXPECT_EQ(room(), 1000U);
  learn(milliseconds(1000), {1500, 1500, 500});  // a long frame: nothing more is known
  EXPECT_EQ(room(), 1000U);
}

TEST_F(CallWindowTest, AFirstBurstAgainstASlowServerIsAboutTwoSecondsOfWork) {
  uint64_t submitted = CallWindow::kFirst;
  ASSERT_FALSE(window.has_room(submitted));
  learn(milliseconds(20), {submitted, submitted, 0});
  while (window.has_room(submitted))
    ++submitted;
  EXPECT_LE(submitted, 2 * CallWindow::kFirst);
  learn(milliseconds(520), {submitted, submitted, 50});  // 10 ms each
  EXPECT_FALSE(window.has_room(CallWindow::kFirst));
}

TEST_F(CallWindowTest, ASlowServerThatWaitsForUsIsNotFlooded) {
  learn(milliseconds(0), {256, 256, 0});
  ASSERT_FALSE(window.has_room(600));
  learn(milliseconds(2560), {512, 256, 256});  // one frame of 10 ms each, and the next is coming
  EXPECT_EQ(room(), 200U);
}

TEST_F(CallWindowTest, CallsThatTakeLongGetTwoSecondsTooThoughTheirFrameIsNotDone) {
  learn(milliseconds(20), {256, 256, 0});
  learn(milliseconds(25), {256, 256, 1, true});
  EXPECT_EQ(room(), 2 * CallWindow::kFirst);  // no rate is known
  learn(milliseconds(600), {256, 256, 6, true});
  EXPECT_EQ(room(), 20U);  // 100 ms each
}

TEST_F(CallWindowTest, ACallOfSecondsLeavesRoomForOneThatWaits) {
  learn(milliseconds(20), {60, 60, 0});
  learn(milliseconds(5000), {60, 60, 1, true});
  learn(milliseconds(10000), {60, 60, 2, true});
  EXPECT_EQ(room(), CallWindow::kLeast);
}

TEST_F(CallWindowTest, ASlowServerStaysSlowWhenItHasNothingToDo) {
  learn(milliseconds(0), {60, 60, 0, true});
  learn(milliseconds(1000), {60, 60, 10, true});
  learn(milliseconds(6000), {60, 60, 60});
  EXPECT_EQ(room(), 20U);
  learn(std::chrono::hours(1), {70, 70, 60});  // an hour without work
  EXPECT_EQ(room(), 20U);
  learn(std::chrono::hours(1) + milliseconds(500), {70, 70, 65, true});
  EXPECT_EQ(room(), 20U);
}

TEST_F(CallWindowTest, AServerThatWasSlowOnceGetsAFullWindowAfterAFewRoundTrips) {
  learn(milliseconds(0), {10, 10, 0, true});
  learn(milliseconds(5000), {10, 10, 1, true});
  learn(milliseconds(5001), {10, 10, 10});
  uint64_t done = 10;
  int round_trips = 0;
  for (milliseconds at(5150); room() < 10000U; at += milliseconds(150), ++round_trips) {
    ASSERT_LT(round_trips, 6);
    done += room();
    learn(at, {done, done, done});
  }
}

TEST_F(CallWindowTest, AServerThatCatchesUpWhileTheClientDoesNotWaitGetsAFullWindow) {
  learn(milliseconds(0), {1000, 1000, 500});
  learn(milliseconds(100), {1000, 1000, 600});
  learn(milliseconds(1000), {1000, 1000, 1000});
  EXPECT_EQ(room(), CallWindow::kFull);
}

}  // namespace
}  // namespace torch_remote::client
