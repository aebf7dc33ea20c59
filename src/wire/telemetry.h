#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

// QUERY kTelemetry: what NVML on the server tells of a device.
//
//   query  := device:u8
//   answer := 0:u8 reason:text
//           | 1:u8 (0:u8 | 1:u8 number:varint)*6 has_processes:u8
//             n:varint (pid:varint (0:u8 | 1:u8 bytes:varint))*n
enum class TelemetryFigure : uint8_t {
  kUtilization,  // percent of the time in which a kernel ran
  kMemoryUsage,  // percent of the time in which memory was read or written
  kMemoryUsed,   // bytes, of all processes
  kTemperature,  // degrees Celsius
  kPowerDraw,    // milliwatts
  kClockRate,    // MHz, of the multiprocessors
};
constexpr size_t kTelemetryFigures = 6;

struct GpuProcess {
  uint64_t pid = 0;
  bool has_bytes = false;  // NVML tells how much memory it uses
  uint64_t bytes = 0;
  bool operator==(const GpuProcess&) const = default;
};

struct Telemetry {
  std::string reason;  // not empty: why there are no figures
  std::array<std::optional<uint64_t>, kTelemetryFigures> figures{};  // by TelemetryFigure
  bool has_processes = false;
  std::vector<GpuProcess> processes;

  void set(TelemetryFigure figure, uint64_t value) { figures[static_cast<size_t>(figure)] = value; }
};

void encode_telemetry_query(Writer& writer, uint8_t device);
uint8_t decode_telemetry_query(Reader& reader);
void encode(Writer& writer, const Telemetry& telemetry);
Telemetry decode_telemetry(Reader& reader);

}  // namespace torch_remote::wire
