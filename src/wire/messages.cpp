#include "wire/messages.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "wire/key.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

template <typename Enum>
Enum checked_enum(uint8_t value, Enum last, const char* what) {
  if (value > static_cast<uint8_t>(last))
    throw ProtocolError(std::string("no ") + what + " " + std::to_string(value));
  return static_cast<Enum>(value);
}

// How the bytes of an upload come.
enum class Form : uint8_t { kBulk = 0, kInline = 1, kBulkKept = 2 };

Form form_of(const Begin& begin) {
  if (begin.is_inline)
    return Form::kInline;
  return begin.is_kept ? Form::kBulkKept : Form::kBulk;
}

}  // namespace

const char* to_text(Tag value) {
  static constexpr std::array kNames = {
      "unknown", "HELLO",    "PROOF",  "WELCOME", "SIGNATURE", "CALL",       "CONTEXT", "GENERATOR",
      "RESIZE",  "STREAM",   "BEGIN",  "CHUNK",   "FREE",      "READ",       "QUERY",   "PROGRAM",
      "GO_ON",   "REPLY",    "ERROR",  "ACK",     "PING",      "CLOSE",      "THREAD",  "RUN",
      "DROP",    "PROGRESS", "CANCEL", "WARNING", "FILL",      "CLOSE_FILE",
  };
  static_assert(kNames.size() == static_cast<size_t>(Tag::kCloseFile) + 1);
  const auto number = static_cast<size_t>(value);
  return kNames[number < kNames.size() ? number : 0];
}

ReceivedMessage next_message(Reader& reader) {
  const auto tag = static_cast<Tag>(reader.u8());
  return {tag, Reader(reader.raw(reader.varint()))};
}

void encode_signature(Writer& writer, const SignatureParts& parts) {
  const Message framed(writer, Tag::kSignature);
  encode(writer, parts);
}

void encode_empty_signature(Writer& writer, uint32_t index, uint32_t operator_id,
                            size_t arguments) {
  Writer key;
  encode_key_head(key, 0, 0, arguments);
  for (size_t i = 0; i < arguments; ++i)
    encode_kind(key, ValueKind::kNone);
  key.varint(0);  // storages
  SignatureParts parts;
  parts.index = index;
  parts.operator_id = operator_id;
  parts.key = key.view();
  encode_signature(writer, parts);
}

void encode(Writer& writer, const Context& context) {
  const Message framed(writer, Tag::kContext);
  encode_settings(writer, context);
}

void encode_settings(Writer& writer, const Context& context) {
  writer.varint(context.settings.size());
  for (const SettingValue& setting : context.settings) {
    writer.u8(static_cast<uint8_t>(setting.setting));
    writer.zigzag(setting.value);
  }
}

Context decode_context(Reader& reader) {
  Context context;
  const uint64_t n = reader.count(kMaxSetting, "settings");
  for (uint64_t i = 0; i < n; ++i) {
    const uint8_t setting = reader.u8();
    if (setting == 0 || setting > kMaxSetting)
      throw ProtocolError("there is no setting " + std::to_string(setting) + " (the last is " +
                          std::to_string(kMaxSetting) + ")");
    context.settings.push_back({static_cast<Setting>(setting), reader.zigzag()});
  }
  return context;
}

void encode(Writer& writer, const GeneratorMessage& message) {
  const Message framed(writer, Tag::kGenerator);
  writer.varint(message.name);
  writer.u8(static_cast<uint8_t>(message.action));
  if (message.action == GeneratorAction::kSetState)
    return writer.bytes(message.state);
  if (message.action != GeneratorAction::kFree)
    writer.u64(message.seed);
}

GeneratorMessage decode_generator(Reader& reader) {
  GeneratorMessage message;
  message.name = reader.name();
  message.action = checked_enum(reader.u8(), GeneratorAction::kCopy, "generator action");
  if (message.action == GeneratorAction::kSetState) {
    const auto state = reader.bytes(kMaxGeneratorState, "generator state");
    message.state.assign(state.begin(), state.end());
  } else if (message.action != GeneratorAction::kFree) {
    message.seed = reader.u64();
  }
  return message;
}

void encode(Writer& writer, const Resize& message) {
  const Message framed(writer, Tag::kResize);
  writer.varint(message.storage);
  writer.u8(message.device);
  writer.varint(message.nbytes);
}

Resize decode_resize(Reader& reader) {
  Resize message;
  message.storage = reader.name();
  message.device = reader.u8();
  if (message.device >= kMaxDevices)
    throw ProtocolError("no such device");
  message.nbytes = reader.count(kMaxStorageBytes, "bytes of a storage");
  return message;
}

void encode(Writer& writer, const Begin& message) {
  const Message framed(writer, Tag::kBegin);
  writer.varint(message.upload);
  writer.varint(message.storage);
  writer.varint(message.offset);
  writer.varint(message.length);
  writer.u8(static_cast<uint8_t>(form_of(message)));
  if (message.is_inline)
    writer.raw(message.bytes);
}

Begin decode_begin(Reader& reader) {
  Begin message;
  message.upload = reader.varint();
  message.storage = reader.name();
  message.offset = reader.count(kMaxStorageBytes, "offset of an upload");
  message.length = reader.count(kMaxStorageBytes, "length of an upload");
  const Form form = checked_enum(reader.u8(), Form::kBulkKept, "form of an upload");
  message.is_inline = form == Form::kInline;
  message.is_kept = form == Form::kBulkKept;
  if (!message.is_inline)
    return message;
  check_limit("bytes of an inline upload", message.length, kMaxInlineBytes);
  message.bytes = reader.raw(message.length);
  return message;
}

std::optional<Begin> find_bulk_begin(std::span<const std::byte> payload) {
  if (payload.empty() || payload[0] != std::byte{static_cast<uint8_t>(Tag::kBegin)})
    return std::nullopt;
  Reader reader(payload);
  ReceivedMessage first = next_message(reader);
  const Begin begin = decode_begin(first.body);
  return begin.is_inline ? std::nullopt : std::optional(begin);
}

void encode_free(Writer& writer, std::span<const uint64_t> names) {
  const Message framed(writer, Tag::kFree);
  writer.varint(names.size());
  uint64_t previous = 0;
  for (const uint64_t name : names) {
    writer.zigzag(static_cast<int64_t>(name - previous));
    previous = name;
  }
}

void encode(Writer& writer, const Read& message) {
  const Message framed(writer, Tag::kRead);
  writer.varint(message.request);
  writer.varint(message.storage);
  writer.varint(message.offset);
  encode(writer, message.spec);
}

Read decode_read(Reader& reader) {
  Read message;
  message.request = reader.name();
  message.storage = reader.name();
  message.offset = reader.varint();
  message.spec = decode_spec(reader);
  return message;
}

Query decode_query(Reader& reader) {
  Query query;
  query.request = reader.name();
  query.kind = checked_enum(reader.u8(), kMaxQueryKind, "query kind");
  return query;
}

QueriedCall decode_queried_call(Reader& reader) {
  QueriedCall call;
  call.index = reader.varint();
  call.first = reader.varint();
  call.names = reader.count(kMaxTensors, "names for results");
  return call;
}

void encode(Writer& writer, const Counters& counters) {
  writer.varint(counters.calls);
  writer.varint(counters.mispredicted);
  writer.varint(counters.storages);
  writer.varint(counters.storage_bytes);
}

Counters decode_counters(Reader& reader) {
  Counters counters;
  counters.calls = reader.varint();
  counters.mispredicted = reader.varint();
  counters.storages = reader.varint();
  counters.storage_bytes = reader.varint();
  return counters;
}

void encode(Writer& writer, const Error& error) {
  writer.u8(static_cast<uint8_t>(error.kind));
  writer.varint(error.call);
  writer.text(cut_text(error.operator_name, kMaxErrorText));
  writer.text(cut_text(error.message, kMaxErrorText));
  writer.varint(error.signature);
  writer.varint(error.first);
  writer.varint(error.thread);
  writer.varint(error.since);
  const size_t n = std::min<size_t>(error.results.size(), kMaxErrorResults);
  writer.varint(n);
  for (size_t i = 0; i < n; ++i)
    writer.varint(error.results[i]);
  const bool has_shortage = error.wanted != 0 || error.free != 0;
  if (error.program == 0 && !has_shortage)
    return;  // clients that know neither refuse bytes behind the results
  writer.varint(error.program);
  writer.varint(error.step);
  if (!has_shortage)
    return;
  writer.varint(error.wanted);
  writer.varint(error.free);
}

Error decode_error(Reader& reader) {
  Error error;
  error.kind = checked_enum(reader.u8(), ErrorKind::kCancelled, "error kind");
  error.call = reader.varint();
  error.operator_name = readable_line(reader.bytes(kMaxErrorText, "operator name"));
  error.message = reader.readable_text(kMaxErrorText, "error text");
  error.signature = reader.varint();
  error.first = reader.varint();
  error.thread = reader.varint();
  error.since = reader.varint();
  const uint64_t n = reader.count(kMaxErrorResults, "results of a failed call");
  for (uint64_t i = 0; i < n; ++i)
    error.results.push_back(reader.varint());
  if (reader.empty())
    return error;
  error.program = reader.varint();
  error.step = reader.count(error.program == 0 ? 0 : kMaxProgramSteps, "step of a program");
  if (reader.empty() && error.program != 0)
    return error;
  error.wanted = reader.varint();
  error.free = reader.varint();
  if (error.wanted == 0 && error.free == 0)
    throw ProtocolError("an error with an empty shortage of memory");
  return error;
}

void encode_thread(Writer& writer, uint64_t thread) {
  const Message framed(writer, Tag::kThread);
  writer.varint(thread);
}

void encode_go_on(Writer& writer, uint64_t thread) {
  const Message framed(writer, Tag::kGoOn);
  writer.varint(thread);
}

void encode_progress(Writer& writer, uint64_t call) {
  const Message framed(writer, Tag::kProgress);
  writer.varint(call);
}

uint64_t decode_progress(Reader& reader) {
  return reader.varint();
}

void encode_cancel(Writer& writer, uint64_t call) {
  const Message framed(writer, Tag::kCancel);
  writer.varint(call);
}

uint64_t decode_cancel(Reader& reader) {
  return reader.varint();
}

std::optional<uint64_t> find_cancel(std::span<const std::byte> payload) {
  if (payload.empty() || static_cast<Tag>(payload.front()) != Tag::kCancel)
    return std::nullopt;
  Reader reader(payload);
  ReceivedMessage message = next_message(reader);
  return decode_cancel(message.body);
}

uint64_t decode_thread(Reader& reader) {
  const uint64_t thread = reader.varint();
  if (thread == 0)
    throw ProtocolError("thread 0 is never valid");
  return thread;
}

uint64_t decode_call(Reader& reader) {
  return reader.varint();
}

void encode_generator_query(Writer& writer, uint64_t name) {
  writer.varint(name);
}

uint64_t decode_generator_query(Reader& reader) {
  return reader.varint();
}

uint64_t decode_error_request(Reader& reader) {
  return reader.varint();
}

void encode_reply(Writer& writer, uint64_t request, std::span<const std::byte> body) {
  const Message framed(writer, Tag::kReply);
  writer.varint(request);
  writer.bytes(body);
}

void encode_error(Writer& writer, uint64_t request, const Error& error) {
  const Message framed(writer, Tag::kError);
  writer.varint(request);
  encode(writer, error);
}

Reply decode_reply(Reader& reader) {
  Reply reply;
  reply.request = reader.varint();
  reply.body = reader.bytes(kMaxReplyBytes, "reply");
  return reply;
}

}  // namespace torch_remote::wire
