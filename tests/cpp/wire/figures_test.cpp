#include "wire/figures.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

Telemetry decoded_telemetry(const std::vector<std::byte>& bytes) {
  Reader reader(bytes);
  Telemetry telemetry = decode_telemetry(reader);
  reader.finish();
  return telemetry;
}

TEST(Telemetry, FiguresComeBackAndHaveGoldenBytes) {
  Telemetry telemetry;
  telemetry.set(TelemetryFigure::kUtilization, 7);
  telemetry.set(TelemetryFigure::kClockRate, 300);
  telemetry.has_processes = true;
  telemetry.processes = {{5, true, 9}, {6, false, 0}};
  Writer writer;
  encode(writer, telemetry);
  EXPECT_EQ(hex(writer.view()),
            "0101070000000001ac02010205010906"
            "00");
  const Telemetry back = decoded_telemetry(writer.take());
  EXPECT_EQ(back.figures, telemetry.figures);
  EXPECT_TRUE(back.has_processes);
  EXPECT_EQ(back.processes, telemetry.processes);
}

TEST(Telemetry, AReasonComesBackAndIsNeverEmpty) {
  Telemetry telemetry;
  telemetry.reason = "cpu";
  Writer writer;
  encode(writer, telemetry);
  EXPECT_EQ(hex(writer.view()), "0003637075");
  EXPECT_EQ(decoded_telemetry(writer.take()).reason, "cpu");
  EXPECT_THROW(decoded_telemetry(from_hex("0000")), ProtocolError);
}

TEST(Telemetry, FlagsAndNumbersOfProcessesAreChecked) {
  EXPECT_THROW(decoded_telemetry(from_hex("02")), ProtocolError);
  EXPECT_THROW(decoded_telemetry(from_hex("0102")), ProtocolError);
  EXPECT_THROW(decoded_telemetry(from_hex("0100000000000002")), ProtocolError);
  Writer writer;
  for (const int byte : {1, 0, 0, 0, 0, 0, 0, 1})
    writer.u8(static_cast<uint8_t>(byte));
  writer.varint(kMaxGpuProcesses + 1);
  EXPECT_THROW(decoded_telemetry(writer.take()), ProtocolError);
}

CallTimes decoded_times(const std::vector<std::byte>& bytes) {
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
  const CallTimes back = decoded_times(writer.take());
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
  EXPECT_EQ(decoded_times(writer.take()).calls, times.calls);
  for (const CallTime time : {CallTime{1, kMaxProfileTime + 1, 0, 0}, CallTime{1, 0, UINT64_MAX, 0},
                              CallTime{1, UINT64_MAX, 0, 0}}) {
    times.calls = {time};
    encode(writer, times);
    EXPECT_THROW(decoded_times(writer.take()), ProtocolError);
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
  EXPECT_THROW(decoded_times(writer.take()), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
