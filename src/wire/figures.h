#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

// QUERY kMemory: does the action, then answers with the figures of the device.
enum class MemoryAction : uint8_t {
  kAsk = 0,
  kEmptyCache = 1,
  kResetPeaks = 2,
  kResetTotals = 3,
};

struct MemoryQuery {
  uint8_t device = 0;
  MemoryAction action = MemoryAction::kAsk;
};

void encode(Writer& writer, const MemoryQuery& query);
MemoryQuery decode_memory_query(Reader& reader);

// One figure of the server's allocator, with PyTorch's name: "allocated_bytes.all".
struct MemoryStat {
  std::string name;
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // sum of all increases
  int64_t freed = 0;      // sum of all decreases
  bool operator==(const MemoryStat&) const = default;
};

// The answer: free:varint total:varint retries:varint ooms:varint n:varint
//             (name:text current:zigzag peak:zigzag allocated:zigzag freed:zigzag)*n
struct MemoryFigures {
  uint64_t free = 0;   // bytes that can still be allocated
  uint64_t total = 0;  // bytes of the device, or what the server's --max-memory leaves of them
  uint64_t retries = 0;
  uint64_t ooms = 0;
  std::vector<MemoryStat> stats;
};

void encode(Writer& writer, const MemoryFigures& figures);
MemoryFigures decode_memory_figures(Reader& reader);

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

// Nanoseconds. A client adds two times, whatever a server tells.
constexpr uint64_t kMaxProfileTime = 1ULL << 62;

// QUERY kProfile: when the device ran calls. Times are nanoseconds of the server's clock, which
// begins anywhere and never jumps.
//
//   query  := action:u8
//   answer := now:varint                                             to kClock and kStart
//           | dropped:varint left:varint n:varint
//             (call:varint begin:zigzag duration:varint stream:u8)*n   to kTake
//
// `call` and `begin` are differences to those of the call before; the first has the values.
enum class ProfileAction : uint8_t {
  kClock = 0,  // what time it is
  kStart = 1,  // measure the calls that follow; forgets what was measured before
  kTake = 2,   // measure no more, and send a part of what was measured; again until none is left
};

struct CallTime {
  uint64_t call = 0;  // Note [Numbers of calls] in wire/messages.h
  uint64_t begin = 0;
  uint64_t duration = 0;
  uint8_t stream = 0;
  bool operator==(const CallTime&) const = default;
};

struct CallTimes {
  uint64_t dropped = 0;  // calls that were forgotten, for the server keeps kMaxProfiledCalls
  uint64_t left = 0;     // calls that are still to be taken
  std::vector<CallTime> calls;
};

void encode_profile_query(Writer& writer, ProfileAction action);
ProfileAction decode_profile_query(Reader& reader);
void encode_clock(Writer& writer, uint64_t now);
uint64_t decode_clock(Reader& reader);
void encode(Writer& writer, const CallTimes& times);
CallTimes decode_call_times(Reader& reader);

}  // namespace torch_remote::wire
