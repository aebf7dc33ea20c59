#include "client/backend/device_profile.h"

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../session_fixture.h"
#include "wire/figures.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using DeviceProfileTest = testing::SessionTest;

constexpr uint64_t kMain = 1;
constexpr uint64_t kOther = 2;

DeviceCall call_of(uint64_t number, uint32_t thread) {
  DeviceCall call;
  call.number = number;
  call.site.thread = thread;
  return call;
}

std::vector<uint64_t> operations(const OperationMarks& marks, std::vector<DeviceCall> calls) {
  marks.assign(calls);
  std::vector<uint64_t> found;
  for (const DeviceCall& call : calls)
    found.push_back(call.operation);
  return found;
}

TEST(ServerTime, IsTheClientsAtBothReadingsAndEvenlyBetween) {
  const ClockReading first{1'000'000, 500, 0};
  const ClockReading last{1'002'010, 2500, 0};  // the server's clock lost 10 of 2010
  EXPECT_EQ(to_local_time(500, first, last), 1'000'000);
  EXPECT_EQ(to_local_time(2500, first, last), 1'002'010);
  EXPECT_EQ(to_local_time(1500, first, last), 1'001'005);
  EXPECT_EQ(to_local_time(3500, first, last), 1'003'015);
}

TEST(ServerTime, OneReadingIsEnough) {
  const ClockReading only{1000, 50, 0};
  EXPECT_EQ(to_local_time(70, only, only), 1020);
  EXPECT_EQ(to_local_time(40, only, only), 990);
}

TEST(CallsOfOperations, ACallIsTheInnermostOperations) {
  OperationMarks marks;
  marks.begin(10, 4, kMain, 1);  // after call 4
  marks.begin(11, 5, kMain, 1);  // call 5 was operation 10's own
  marks.end(7, kMain, 1);
  marks.end(8, kMain, 1);
  EXPECT_EQ(operations(marks, {call_of(4, kMain), call_of(5, kMain), call_of(6, kMain),
                               call_of(7, kMain), call_of(8, kMain), call_of(9, kMain)}),
            (std::vector<uint64_t>{0, 10, 11, 11, 10, 0}));
}

TEST(CallsOfOperations, ThreadsThatCallAtOnceKeepTheirOwn) {
  OperationMarks marks;
  marks.begin(10, 0, kMain, 1);
  marks.begin(20, 0, kOther, 2);
  marks.end(3, kOther, 2);
  marks.end(4, kMain, 1);
  EXPECT_EQ(operations(marks, {call_of(1, kMain), call_of(2, kOther), call_of(3, kMain),
                               call_of(4, kOther)}),
            (std::vector<uint64_t>{10, 20, 10, 0}));
}

// Worker threads of autograd have the number of the thread that called backward().
TEST(CallsOfOperations, AnEndIsOfTheWorkerThatBegan) {
  OperationMarks marks;
  marks.begin(10, 0, kMain, 1);
  marks.begin(20, 0, kMain, 2);
  marks.end(1, kMain, 1);
  EXPECT_EQ(operations(marks, {call_of(1, kMain), call_of(2, kMain)}),
            (std::vector<uint64_t>{20, 20}));
}

TEST(CallsOfOperations, AnEndWithoutABeginningIsOfAnOperationBeforeTheProfile) {
  OperationMarks marks;
  marks.end(0, kMain, 1);
  marks.begin(10, 1, kMain, 1);
  EXPECT_EQ(operations(marks, {call_of(1, kMain), call_of(2, kMain)}),
            (std::vector<uint64_t>{0, 10}));
}

// Promise 7b.
TEST_F(DeviceProfileTest, AProfileThatNeverEndsEndsTheSession) {
  connect();
  wire::Writer clock;
  wire::encode_clock(clock, 300);
  std::optional<DeviceProfile> profile;
  EXPECT_EQ(error_with_answers(clock.take(), [&] { profile.emplace(session); }), "(no error)");
  wire::CallTimes times;
  times.left = 1;
  times.calls.resize(wire::kMaxProfiledBatch);
  uint64_t dropped = 0;
  EXPECT_THAT(error_with_answers(testing::body_of(times), [&] { profile->finish(dropped); }),
              ::testing::HasSubstr("profiled calls: 196608 is over the limit of 131072"));
  EXPECT_TRUE(session.link().is_lost());
}

}  // namespace
}  // namespace torch_remote::client
