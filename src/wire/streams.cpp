#include "wire/streams.h"

#include "base/error.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

uint64_t stream_number(Reader& reader) {
  const uint64_t stream = reader.varint();
  check_limit("number of a stream", stream, kMaxStreams);
  return stream;
}

}  // namespace

void encode(Writer& writer, const StreamMessage& message) {
  const Message framed(writer, Tag::kStream);
  writer.u8(static_cast<uint8_t>(message.action));
  writer.u8(message.device);
  writer.varint(message.stream);
  if (message.action != StreamAction::kUse)
    writer.varint(message.name);
  if (message.action == StreamAction::kRecord)
    writer.u8(message.is_timed ? 1 : 0);
}

StreamMessage decode_stream(Reader& reader) {
  StreamMessage message;
  const uint8_t action = reader.u8();
  if (action > static_cast<uint8_t>(StreamAction::kRecordStream))
    throw ProtocolError("no stream action " + std::to_string(action));
  message.action = static_cast<StreamAction>(action);
  message.device = reader.u8();
  message.stream = stream_number(reader);
  if (message.action != StreamAction::kUse)
    message.name = reader.name();
  if (message.action == StreamAction::kRecord)
    message.is_timed = reader.u8() != 0;
  return message;
}

void encode_stream_query(Writer& writer, const DoneQuery& query) {
  writer.u8(query.device);
  writer.varint(query.stream);
  writer.u8(query.waits ? 1 : 0);
}

DoneQuery decode_stream_query(Reader& reader) {
  DoneQuery query;
  query.device = reader.u8();
  query.stream = stream_number(reader);
  query.waits = reader.u8() != 0;
  return query;
}

void encode_event_query(Writer& writer, const DoneQuery& query) {
  writer.varint(query.event);
  writer.u8(query.waits ? 1 : 0);
}

DoneQuery decode_event_query(Reader& reader) {
  DoneQuery query;
  query.event = reader.name();
  query.waits = reader.u8() != 0;
  return query;
}

std::vector<std::byte> done_answer(bool is_done) {
  Writer writer;
  writer.u8(is_done ? 1 : 0);
  return writer.take();
}

bool decode_done(Reader& reader) {
  return reader.u8() != 0;
}

void encode(Writer& writer, const ElapsedQuery& query) {
  writer.varint(query.first);
  writer.varint(query.second);
}

ElapsedQuery decode_elapsed_query(Reader& reader) {
  ElapsedQuery query;
  query.first = reader.name();
  query.second = reader.name();
  return query;
}

std::vector<std::byte> elapsed_answer(double milliseconds) {
  Writer writer;
  writer.f64(milliseconds);
  return writer.take();
}

double decode_elapsed(Reader& reader) {
  return reader.f64();
}

}  // namespace torch_remote::wire
