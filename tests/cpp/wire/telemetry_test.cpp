#include "wire/telemetry.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

Telemetry decoded(const std::vector<std::byte>& bytes) {
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
  const Telemetry back = decoded(writer.take());
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
  EXPECT_EQ(decoded(writer.take()).reason, "cpu");
  EXPECT_THROW(decoded(from_hex("0000")), ProtocolError);
}

TEST(Telemetry, FlagsAndNumbersOfProcessesAreChecked) {
  EXPECT_THROW(decoded(from_hex("02")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0102")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0100000000000002")), ProtocolError);
  Writer writer;
  for (const int byte : {1, 0, 0, 0, 0, 0, 0, 1})
    writer.u8(static_cast<uint8_t>(byte));
  writer.varint(kMaxGpuProcesses + 1);
  EXPECT_THROW(decoded(writer.take()), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
