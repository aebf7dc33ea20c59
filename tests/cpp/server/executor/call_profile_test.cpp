#include "server/executor/call_profile.h"

#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

struct Profiled {
  Devices devices{c10::DeviceType::CPU, 2};
  Streams streams{devices};
  CallProfile profile{devices, streams};

  void call(uint64_t number, uint8_t device = 0) {
    const CallProfile::Timer timer(profile, number, device);
  }
};

TEST(CallProfile, MeasuresOnlyWhatIsCalledBetweenStartAndTake) {
  Profiled server;
  server.call(1);
  server.profile.start();
  server.streams.use(1, 3);
  const uint64_t before = CallProfile::now();
  server.call(2);
  server.call(3, 1);
  const uint64_t after = CallProfile::now();
  const wire::CallTimes times = server.profile.take();
  server.call(4);
  EXPECT_TRUE(server.profile.take().calls.empty());
  ASSERT_EQ(times.calls.size(), 2);
  EXPECT_EQ(times.calls[0].call, 2);
  EXPECT_EQ(times.calls[1].call, 3);
  EXPECT_EQ(times.calls[0].stream, 0);
  EXPECT_EQ(times.calls[1].stream, 3);
  EXPECT_LE(before, times.calls[0].begin);
  EXPECT_LE(times.calls[0].begin + times.calls[0].duration, times.calls[1].begin);
  EXPECT_LE(times.calls[1].begin + times.calls[1].duration, after);
  EXPECT_EQ(times.dropped, 0);
}

TEST(CallProfile, KeepsTheLastCallsAndSaysHowManyItForgot) {
  Profiled server;
  server.profile.start();
  for (uint64_t i = 1; i <= wire::kMaxProfiledCalls + 5; ++i)
    server.call(i);
  const wire::CallTimes first = server.profile.take();
  EXPECT_EQ(first.dropped, 5);
  ASSERT_EQ(first.calls.size(), wire::kMaxProfiledBatch);
  EXPECT_EQ(first.calls.front().call, 6);
  EXPECT_EQ(first.left, wire::kMaxProfiledCalls - wire::kMaxProfiledBatch);
  const wire::CallTimes second = server.profile.take();
  EXPECT_EQ(second.calls.back().call, wire::kMaxProfiledCalls + 5);
  EXPECT_EQ(second.left, 0);
}

TEST(CallProfile, AStartForgetsTheProfileBefore) {
  Profiled server;
  server.profile.start();
  server.call(1);
  server.profile.start();
  EXPECT_TRUE(server.profile.take().calls.empty());
}

// A REPLY has room for the largest batch.
TEST(CallProfile, ABatchOfTheLargestNumbersFitsAReply) {
  wire::CallTimes times;
  times.calls.resize(wire::kMaxProfiledBatch);
  for (size_t i = 0; i < times.calls.size(); ++i)
    times.calls[i] = {UINT64_MAX / 2 * (i % 2), UINT64_MAX / 2 * (i % 2), UINT64_MAX, 64};
  wire::Writer writer;
  encode(writer, times);
  EXPECT_LT(writer.size(), wire::kMaxReplyBytes);
}

}  // namespace
}  // namespace torch_remote::server
