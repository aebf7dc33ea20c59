#include "wire/telemetry.h"

#include "base/error.h"
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

}  // namespace torch_remote::wire
