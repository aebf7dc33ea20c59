#pragma once

#include <cstdint>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

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
