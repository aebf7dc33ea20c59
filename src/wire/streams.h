#pragma once

#include <cstdint>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

// Note [Streams]
//
// Each device has a default stream, number 0, and kMaxStreams more, which the server makes when
// they are first named; the upper half have high priority. The client names events. On a CPU
// everything runs in order, and an event happens when the server reaches its place.
enum class StreamAction : uint8_t {
  kUse = 0,     //                        what follows for this device goes to this stream
  kRecord = 1,  // event:varint timed:u8  the event happens when the stream has done its work so far
  kWait = 2,    // event:varint           what follows for the stream waits for the event
  kForget = 3,  // event:varint           the client does not use the event any more
  kRecordStream = 4,  // storage:varint   the stream uses it: freed memory is not reused before
};

//   STREAM action:u8 device:u8 stream:varint …     (StreamAction)
struct StreamMessage {
  StreamAction action = StreamAction::kUse;
  uint8_t device = 0;
  uint64_t stream = 0;
  uint64_t name = 0;  // of the event or the storage
  bool is_timed = false;
};

void encode(Writer& writer, const StreamMessage& message);
StreamMessage decode_stream(Reader& reader);

// QUERY kStream and kEvent: whether its work is done, or it has happened. With `waits` the answer
// comes when it is so.
struct DoneQuery {
  uint8_t device = 0;   // kStream
  uint64_t stream = 0;  // kStream
  uint64_t event = 0;   // kEvent
  bool waits = false;
};

void encode_stream_query(Writer& writer, const DoneQuery& query);
DoneQuery decode_stream_query(Reader& reader);
void encode_event_query(Writer& writer, const DoneQuery& query);
DoneQuery decode_event_query(Reader& reader);
std::vector<std::byte> done_answer(bool is_done);
bool decode_done(Reader& reader);

// QUERY kElapsed: how many milliseconds lie between two timed events.
struct ElapsedQuery {
  uint64_t first = 0;
  uint64_t second = 0;
};

void encode(Writer& writer, const ElapsedQuery& query);
ElapsedQuery decode_elapsed_query(Reader& reader);
std::vector<std::byte> elapsed_answer(double milliseconds);
double decode_elapsed(Reader& reader);

}  // namespace torch_remote::wire
