#include "wire/profile.h"

#include <string>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {

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
