#include "wire/profile.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

CallTimes decoded(const std::vector<std::byte>& bytes) {
  Reader reader(bytes);
  CallTimes times = decode_call_times(reader);
  reader.finish();
  return times;
}

TEST(Profile, TimesOfCallsComeBackAndHaveGoldenBytes) {
  CallTimes times;
  times.dropped = 2;
  times.left = 1;
  times.calls = {{5, 1000, 300, 0}, {6, 1400, 7, 3}, {9, 1390, 0, 0}};
  Writer writer;
  encode(writer, times);
  EXPECT_EQ(hex(writer.view()),
            "020103"
            "05d00fac0200"
            "01a0060703"
            "03130000");
  const CallTimes back = decoded(writer.take());
  EXPECT_EQ(back.dropped, 2);
  EXPECT_EQ(back.left, 1);
  EXPECT_EQ(back.calls, times.calls);
}

TEST(Profile, ActionsAndTheClockComeBack) {
  for (const auto action : {ProfileAction::kClock, ProfileAction::kStart, ProfileAction::kTake}) {
    Writer writer;
    encode_profile_query(writer, action);
    const auto bytes = writer.take();
    EXPECT_EQ(bytes.size(), 1);
    Reader reader(bytes);
    EXPECT_EQ(decode_profile_query(reader), action);
  }
  const auto unknown = from_hex("03");
  Reader reader(unknown);
  EXPECT_THROW(decode_profile_query(reader), ProtocolError);
  Writer writer;
  encode_clock(writer, 300);
  EXPECT_EQ(hex(writer.view()), "ac02");
}

// Promise 7b.
TEST(Profile, TimesThatWouldOverflowAreRefused) {
  CallTimes times;
  times.calls = {{1, kMaxProfileTime, kMaxProfileTime, 0}};
  Writer writer;
  encode(writer, times);
  EXPECT_EQ(decoded(writer.take()).calls, times.calls);
  for (const CallTime time : {CallTime{1, kMaxProfileTime + 1, 0, 0}, CallTime{1, 0, UINT64_MAX, 0},
                              CallTime{1, UINT64_MAX, 0, 0}}) {
    times.calls = {time};
    encode(writer, times);
    EXPECT_THROW(decoded(writer.take()), ProtocolError);
  }
  encode_clock(writer, kMaxProfileTime + 1);
  const auto clock = writer.take();
  Reader reader(clock);
  EXPECT_THROW(decode_clock(reader), ProtocolError);
}

TEST(Profile, TheNumberOfCallsIsChecked) {
  Writer writer;
  writer.varint(0);
  writer.varint(0);
  writer.varint(kMaxProfiledBatch + 1);
  EXPECT_THROW(decoded(writer.take()), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
