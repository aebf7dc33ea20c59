#include "wire/figures.h"

#include <string>

#include "base/error.h"
#include "base/text.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

void encode(Writer& writer, std::optional<uint64_t> number) {
  writer.u8(number.has_value() ? 1 : 0);
  if (number.has_value())
    writer.varint(*number);
}

bool decode_flag(Reader& reader) {
  const uint8_t value = reader.u8();
  if (value > 1)
    throw ProtocolError("a flag of telemetry is " + std::to_string(value));
  return value == 1;
}

std::optional<uint64_t> decode_optional(Reader& reader) {
  if (!decode_flag(reader))
    return std::nullopt;
  return reader.varint();
}

}  // namespace

void encode(Writer& writer, const MemoryQuery& query) {
  writer.u8(query.device);
  writer.u8(static_cast<uint8_t>(query.action));
}

MemoryQuery decode_memory_query(Reader& reader) {
  MemoryQuery query;
  query.device = reader.u8();
  const uint8_t action = reader.u8();
  if (action > static_cast<uint8_t>(MemoryAction::kResetTotals))
    throw ProtocolError("no memory action " + std::to_string(action));
  query.action = static_cast<MemoryAction>(action);
  return query;
}

void encode(Writer& writer, const MemoryFigures& figures) {
  for (const uint64_t number : {figures.free, figures.total, figures.retries, figures.ooms})
    writer.varint(number);
  writer.varint(figures.stats.size());
  for (const MemoryStat& stat : figures.stats) {
    writer.text(stat.name);
    for (const int64_t number : {stat.current, stat.peak, stat.allocated, stat.freed})
      writer.zigzag(number);
  }
}

MemoryFigures decode_memory_figures(Reader& reader) {
  MemoryFigures figures;
  for (uint64_t* const number : {&figures.free, &figures.total, &figures.retries, &figures.ooms})
    *number = reader.varint();
  for (uint64_t n = reader.count(kMaxMemoryStats, "memory figures"); n > 0; --n) {
    MemoryStat& stat = figures.stats.emplace_back();
    stat.name = readable_line(reader.bytes(kMaxText, "name of a memory figure"));
    for (int64_t* const number : {&stat.current, &stat.peak, &stat.allocated, &stat.freed})
      *number = reader.zigzag();
  }
  return figures;
}

void encode_telemetry_query(Writer& writer, uint8_t device) {
  writer.u8(device);
}

uint8_t decode_telemetry_query(Reader& reader) {
  return reader.u8();
}

void encode(Writer& writer, const Telemetry& telemetry) {
  writer.u8(telemetry.reason.empty() ? 1 : 0);
  if (!telemetry.reason.empty())
    return writer.text(telemetry.reason);
  for (const std::optional<uint64_t>& figure : telemetry.figures)
    encode(writer, figure);
  writer.u8(telemetry.has_processes ? 1 : 0);
  writer.varint(telemetry.processes.size());
  for (const GpuProcess& process : telemetry.processes) {
    writer.varint(process.pid);
    encode(writer, process.has_bytes ? std::optional(process.bytes) : std::nullopt);
  }
}

Telemetry decode_telemetry(Reader& reader) {
  Telemetry telemetry;
  if (!decode_flag(reader)) {
    telemetry.reason = reader.readable_text(kMaxText, "reason");
    if (telemetry.reason.empty())
      throw ProtocolError("telemetry is refused without a reason");
    return telemetry;
  }
  for (std::optional<uint64_t>& figure : telemetry.figures)
    figure = decode_optional(reader);
  telemetry.has_processes = decode_flag(reader);
  for (uint64_t n = reader.count(kMaxGpuProcesses, "processes of a GPU"); n > 0; --n) {
    GpuProcess& process = telemetry.processes.emplace_back();
    process.pid = reader.varint();
    const std::optional<uint64_t> bytes = decode_optional(reader);
    process.has_bytes = bytes.has_value();
    process.bytes = bytes.value_or(0);
  }
  return telemetry;
}

void encode_profile_query(Writer& writer, ProfileAction action) {
  writer.u8(static_cast<uint8_t>(action));
}

ProfileAction decode_profile_query(Reader& reader) {
  const uint8_t action = reader.u8();
  if (action > static_cast<uint8_t>(ProfileAction::kTake))
    throw ProtocolError("the action of a profile query is " + std::to_string(action));
  return static_cast<ProfileAction>(action);
}

void encode_clock(Writer& writer, uint64_t now) {
  writer.varint(now);
}

uint64_t decode_clock(Reader& reader) {
  return reader.count(kMaxProfileTime, "time of a profile");
}

void encode(Writer& writer, const CallTimes& times) {
  writer.varint(times.dropped);
  writer.varint(times.left);
  writer.varint(times.calls.size());
  CallTime before;
  for (const CallTime& time : times.calls) {
    writer.varint(time.call - before.call);
    writer.zigzag(static_cast<int64_t>(time.begin - before.begin));
    writer.varint(time.duration);
    writer.u8(time.stream);
    before = time;
  }
}

CallTimes decode_call_times(Reader& reader) {
  CallTimes times;
  times.dropped = reader.varint();
  times.left = reader.varint();
  const uint64_t count = reader.count(kMaxProfiledBatch, "profiled calls of an answer");
  CallTime before;
  for (uint64_t i = 0; i < count; ++i) {
    CallTime& time = times.calls.emplace_back();
    time.call = before.call + reader.varint();
    time.begin = before.begin + static_cast<uint64_t>(reader.zigzag());
    check_limit("time of a profile", time.begin, kMaxProfileTime);
    time.duration = reader.count(kMaxProfileTime, "time of a profile");
    time.stream = reader.u8();
    before = time;
  }
  return times;
}

}  // namespace torch_remote::wire
