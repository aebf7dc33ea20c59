#include "server/device/nvml.h"

#include <gtest/gtest.h>

#include "server/device/cuda_properties.h"

namespace torch_remote::server {
namespace {

using wire::Telemetry;
using wire::TelemetryFigure;

std::optional<uint64_t> figure(const Telemetry& telemetry, TelemetryFigure which) {
  return telemetry.figures[static_cast<size_t>(which)];
}

TEST(Nvml, WithoutTheLibraryThereIsAReasonAndNoFigure) {
  const Telemetry telemetry = Nvml("libno-such-nvml.so.1").read("0000:01:00.0");
  EXPECT_EQ(telemetry.reason, "NVML is not installed there");
  EXPECT_EQ(telemetry.figures, Telemetry().figures);
  EXPECT_FALSE(telemetry.has_processes);
}

// tests/cpp/stand_ins/nvml.cpp has the figures.
TEST(Nvml, FiguresAreThoseOfTheGpuAtTheBus) {
  const Telemetry telemetry = Nvml(TORCH_REMOTE_NVML_STAND_IN).read("0000:02:00.0");
  EXPECT_EQ(telemetry.reason, "");
  EXPECT_EQ(figure(telemetry, TelemetryFigure::kUtilization), 42);
  EXPECT_EQ(figure(telemetry, TelemetryFigure::kMemoryUsage), 17);
  EXPECT_EQ(figure(telemetry, TelemetryFigure::kMemoryUsed), 3ULL << 30);
  EXPECT_EQ(figure(telemetry, TelemetryFigure::kTemperature), 55);
  EXPECT_EQ(figure(telemetry, TelemetryFigure::kClockRate), 1980);
  ASSERT_TRUE(telemetry.has_processes);
  ASSERT_EQ(telemetry.processes.size(), 2);
  EXPECT_EQ(telemetry.processes[0], (wire::GpuProcess{1234, true, 1 << 20}));
  EXPECT_EQ(telemetry.processes[1], (wire::GpuProcess{5678, false, 0}));
}

TEST(Nvml, AFigureThatTheGpuDoesNotTellStaysUnknown) {
  const Telemetry telemetry = Nvml(TORCH_REMOTE_NVML_STAND_IN).read("0000:02:00.0");
  EXPECT_EQ(figure(telemetry, TelemetryFigure::kPowerDraw), std::nullopt);
}

TEST(Nvml, AnUnknownGpuIsAReason) {
  const Telemetry telemetry = Nvml(TORCH_REMOTE_NVML_STAND_IN).read("0000:09:00.0");
  EXPECT_EQ(telemetry.reason, "NVML does not know the GPU at 0000:09:00.0 (error 6)");
}

TEST(Nvml, ADeviceThatTheDriverDoesNotKnowHasNoBus) {
  EXPECT_EQ(cuda_bus(1 << 20), "");
}

}  // namespace
}  // namespace torch_remote::server
