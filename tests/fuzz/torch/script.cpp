#include "script.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace torch_remote::fuzz {

using wire::Tag;

namespace {

constexpr int kMostSteps = 200;

}  // namespace

void Script::tag(Tag tag) {
  end_message();
  writer_.u8(static_cast<uint8_t>(tag));
  length_at_ = writer_.size();
  writer_.u8(0);
}

void Script::end_message() {
  if (length_at_ != 0)
    writer_.patch_length(length_at_);
  length_at_ = 0;
}

uint64_t Script::old_name() {
  const uint8_t choice = draw_.byte();
  if (choice >= 252)
    return draw_.number();
  if (choice >= 244 && !freed_.empty())
    return freed_[draw_.below(freed_.size())];
  if (live_.empty())
    return choice >= 240 ? 0 : next_name_;
  return live_[choice % live_.size()];
}

uint64_t Script::new_name() {
  if (draw_.rarely(32))
    return old_name();
  live_.push_back(next_name_);
  return next_name_++;
}

const wire::Signature* Script::choose_signature(bool outputs_known, uint64_t& index) {
  if (signatures_.empty())
    return nullptr;
  const size_t first = draw_.below(signatures_.size());
  for (size_t i = 0; i < signatures_.size(); ++i) {
    const auto& [at, signature] = signatures_[(first + i) % signatures_.size()];
    if (signature.outputs_known != outputs_known && !draw_.rarely(64))
      continue;
    index = at;
    return &signature;
  }
  return nullptr;
}

void Script::resize() {
  const bool is_new = live_.empty() || !draw_.rarely(3);
  const uint64_t name = is_new ? new_name() : old_name();
  tag(Tag::kResize);
  writer_.varint(name);
  writer_.u8(draw_.rarely(16) ? draw_.byte() : 0);
  const uint64_t least = draw_.is_tame() ? 256 : 0;  // enough for most views that are drawn
  writer_.varint(draw_.rarely(16) ? draw_.number() : least + draw_.below(16) * 16);
}

void Script::upload() {
  tag(Tag::kBegin);
  writer_.varint(draw_.number());
  writer_.varint(old_name());
  writer_.varint(draw_.rarely(8) ? draw_.number() : 0);
  const auto bytes = draw_.bytes(256);
  writer_.varint(bytes.size());
  writer_.u8(1);
  writer_.raw(bytes);
}

// First in a frame of its own, as the server wants it.
void Script::begin_upload() {
  end_frame();
  Lane lane{draw_.number(), draw_.rarely(16) ? draw_.number() : draw_.below(16) * 16, 0};
  tag(Tag::kBegin);
  writer_.varint(lane.upload);
  writer_.varint(old_name());
  writer_.varint(draw_.rarely(8) ? draw_.number() : 0);
  writer_.varint(lane.length);
  writer_.u8(0);
  lanes_.push_back(lane);
  end_frame();
}

void Script::send_chunk() {
  if (lanes_.empty())
    return receiver_.chunk(draw_.number(), draw_.number(), draw_.bytes(64), draw_.rarely(2));
  Lane& lane = lanes_[draw_.below(lanes_.size())];
  const bool is_whole = !draw_.rarely(8);
  const std::vector<std::byte> rest(std::min<uint64_t>(lane.length - lane.sent, 4096));
  const auto bytes = is_whole ? std::span<const std::byte>(rest) : draw_.bytes(64);
  lane.sent += std::min<uint64_t>(bytes.size(), lane.length - lane.sent);
  const uint64_t offset = lane.sent - std::min<uint64_t>(bytes.size(), lane.sent);
  receiver_.chunk(lane.upload, draw_.rarely(32) ? draw_.number() : offset, bytes,
                  is_whole || draw_.rarely(2));
}

// One that cannot be decoded is sent all the same, and is the end of the session.
wire::Signature Script::decode(const wire::Writer& body, const Naming& naming) {
  wire::Reader reader(body.view());
  try {
    return wire::decode_signature(reader, naming.number + (naming.is_introduced ? 1 : 0));
  } catch (const ProtocolError&) {
    end_frame();
    throw;
  }
}

void Script::signature() {
  Naming naming;
  naming.index = draw_.rarely(32) ? draw_.number() : draw_.below(8);
  naming.is_introduced = !operators_.empty() && draw_.rarely(2);
  naming.number = static_cast<uint32_t>(naming.is_introduced ? draw_.below(operators_.size())
                                                             : operators_.size());
  if (!naming.is_introduced)
    operators_.push_back(callable_[draw_.below(callable_.size())]);
  wire::Writer body;
  draw_signature(draw_, operators_[naming.number], naming, body);
  tag(Tag::kSignature);
  writer_.raw(body.view());
  wire::Signature decoded = decode(body, naming);
  std::erase_if(signatures_, [&](const auto& known) { return known.first == naming.index; });
  signatures_.emplace_back(naming.index, std::move(decoded));
}

void Script::call() {
  uint64_t index = 0;
  const wire::Signature* const chosen = choose_signature(true, index);
  if (chosen == nullptr)
    return signature();
  if (draw_.rarely(4)) {
    tag(Tag::kQuery);
    writer_.varint(next_request_++);
    writer_.u8(static_cast<uint8_t>(wire::QueryKind::kCheckedCall));
  } else {
    tag(Tag::kCall);
  }
  writer_.varint(index);
  draw_slots(draw_, *chosen, writer_, names_,
             [this](bool is_new) { return is_new ? new_name() : old_name(); });
}

void Script::query_call() {
  uint64_t index = 0;
  const wire::Signature* const chosen = choose_signature(false, index);
  if (chosen == nullptr)
    return signature();
  tag(Tag::kQuery);
  writer_.varint(next_request_++);
  writer_.u8(static_cast<uint8_t>(wire::QueryKind::kCall));
  writer_.varint(index);
  const uint64_t names = draw_.rarely(16) ? draw_.number() : draw_.below(6);
  writer_.varint(draw_.rarely(32) ? draw_.number() : next_name_);
  writer_.varint(names);
  for (uint64_t i = 0; i < std::min<uint64_t>(names, 2); ++i)
    live_.push_back(next_name_ + i);
  next_name_ += std::min<uint64_t>(names, 8);
  draw_slots(draw_, *chosen, writer_, names_,
             [this](bool is_new) { return is_new ? new_name() : old_name(); });
}

void Script::read() {
  tag(Tag::kRead);
  writer_.varint(draw_.rarely(64) ? 0 : next_request_++);
  writer_.varint(old_name());
  writer_.varint(draw_.rarely(4) ? draw_.number() : 0);
  draw_spec(draw_, writer_);
}

void Script::free() {
  const uint64_t count = 1 + draw_.below(3);
  std::vector<uint64_t> names;
  for (uint64_t i = 0; i < count; ++i)
    names.push_back(old_name());
  end_message();
  wire::encode_free(writer_, names);
  for (const uint64_t name : names) {
    std::erase(live_, name);
    freed_.push_back(name);
  }
}

void Script::query() {
  tag(Tag::kQuery);
  writer_.varint(draw_.rarely(64) ? 0 : next_request_++);
  const uint8_t kind = static_cast<uint8_t>(draw_.rarely(64) ? draw_.byte() : 1 + draw_.below(18));
  // The server makes the list of all operators for each request, so it would take most of the time.
  const bool is_slow = kind == static_cast<uint8_t>(wire::QueryKind::kOperators);
  writer_.u8(is_slow && !draw_.rarely(64) ? static_cast<uint8_t>(wire::QueryKind::kBarrier) : kind);
  if (kind == static_cast<uint8_t>(wire::QueryKind::kGenerator))
    writer_.varint(draw_.number());
  if (kind == static_cast<uint8_t>(wire::QueryKind::kStream))
    encode_stream_query(
        writer_, {static_cast<uint8_t>(draw_.below(2)), draw_.below(70), 0, draw_.rarely(2)});
  if (kind == static_cast<uint8_t>(wire::QueryKind::kEvent))
    encode_event_query(writer_, {0, 0, draw_.below(4), draw_.rarely(2)});
  if (kind == static_cast<uint8_t>(wire::QueryKind::kElapsed))
    encode(writer_, wire::ElapsedQuery{draw_.below(4), draw_.below(4)});
  if (kind == static_cast<uint8_t>(wire::QueryKind::kMemory))
    encode(writer_, wire::MemoryQuery{static_cast<uint8_t>(draw_.below(2)),
                                      static_cast<wire::MemoryAction>(draw_.below(5))});
  if (kind == static_cast<uint8_t>(wire::QueryKind::kTelemetry))
    writer_.u8(static_cast<uint8_t>(draw_.below(2)));
  if (kind == static_cast<uint8_t>(wire::QueryKind::kProfile))
    writer_.u8(static_cast<uint8_t>(draw_.below(3)));
  if (kind == static_cast<uint8_t>(wire::QueryKind::kPeer)) {
    writer_.u8(static_cast<uint8_t>(2 + draw_.below(3)));  // opens no connection
    writer_.varint(1 + draw_.below(2));
  }
  if (kind == static_cast<uint8_t>(wire::QueryKind::kGroup))
    group();
  if (kind == static_cast<uint8_t>(wire::QueryKind::kFile))
    file_query();
  if (kind != static_cast<uint8_t>(wire::QueryKind::kOperator))
    return;
  const auto& schema = all_operators()[draw_.below(all_operators().size())].schema();
  writer_.text(draw_.rarely(8) ? draw_.text() : schema.name());
  writer_.text(schema.overload_name());
}

// The session may not connect, so no engine starts.
void Script::group() {
  wire::GroupQuery query;
  query.group = draw_.below(3);
  query.action = static_cast<wire::GroupAction>(draw_.below(3));
  query.rank = draw_.below(3);
  query.size = draw_.below(4);
  query.timeout = draw_.number();
  query.address = "127.0.0.1";
  query.entries = {{"key", {}}};
  encode(writer_, query);
}

void Script::stream() {
  end_message();
  wire::StreamMessage message;
  message.action = static_cast<wire::StreamAction>(draw_.below(5));
  message.device = static_cast<uint8_t>(draw_.rarely(16) ? draw_.byte() : 0);
  message.stream = draw_.rarely(16) ? draw_.number() : draw_.below(4);
  message.name = 1 + draw_.below(4);
  encode(writer_, message);
}

void Script::generator() {
  tag(Tag::kGenerator);
  writer_.varint(wire::kDefaultGenerator +
                 (draw_.rarely(4) ? 16 + draw_.below(4) : draw_.below(2)));
  const auto action = static_cast<uint8_t>(draw_.rarely(32) ? draw_.byte() : draw_.below(5));
  writer_.u8(action);
  if (action == static_cast<uint8_t>(wire::GeneratorAction::kSetState))
    return writer_.bytes(draw_.bytes(64));
  if (action != static_cast<uint8_t>(wire::GeneratorAction::kFree))
    writer_.u64(draw_.rarely(4) ? draw_.number() : 17 + draw_.below(4));
}

void Script::context() {
  tag(Tag::kContext);
  const uint64_t count = draw_.below(4);
  writer_.varint(count);
  for (uint64_t i = 0; i < count; ++i) {
    writer_.u8(static_cast<uint8_t>(draw_.rarely(32) ? draw_.byte() : 1 + draw_.below(38)));
    writer_.zigzag(draw_.signed_number());
  }
}

void Script::thread() {
  tag(draw_.rarely(2) ? Tag::kThread : Tag::kGoOn);
  writer_.varint(draw_.rarely(64) ? draw_.number() : 1 + draw_.below(3));
}

// The first numbers are of storages that are there, the others of temporaries.
void Script::program() {
  std::vector<wire::ProgramStorage> storages;
  const uint64_t named = draw_.below(6);
  for (uint64_t i = 0; i < named; ++i)
    storages.push_back({old_name(), 0, 0});
  const uint64_t temporaries = draw_.below(6);
  for (uint64_t i = 0; i < temporaries; ++i)
    storages.push_back({0, static_cast<uint8_t>(draw_.rarely(16) ? draw_.byte() : 0),
                        draw_.rarely(16) ? draw_.number() : draw_.below(64) * 16});
  const uint64_t steps = 1 + draw_.below(6);
  uint64_t next_made = 0;
  const auto number = [&](bool is_new) {
    if (draw_.rarely(32))
      return draw_.number();
    return is_new ? named + next_made++ : draw_.below(std::max<uint64_t>(storages.size(), 1));
  };
  end_message();
  wire::encode_program(
      writer_, draw_.rarely(32) ? draw_.number() : ++programs_, storages, steps,
      [&](wire::NameState& names) {
        for (uint64_t i = 0; i < steps; ++i) {
          uint64_t index = 0;
          const wire::Signature* const chosen = choose_signature(true, index);
          if (chosen == nullptr || draw_.rarely(8))
            wire::encode_step(writer_, wire::Context{{{wire::Setting::kDeterministic, 1}}});
          else
            wire::encode_step(writer_, static_cast<uint32_t>(index),
                              [&] { draw_slots(draw_, *chosen, writer_, names, number); });
        }
      });
}

void Script::run_program() {
  if (programs_ == 0)
    return program();
  wire::Run run;
  run.program = draw_.rarely(32) ? draw_.number() : 1 + draw_.below(programs_);
  if (draw_.rarely(4))
    run.changed.push_back({draw_.below(8), draw_.rarely(2) ? old_name() : new_name(),
                           draw_.rarely(4) ? static_cast<int64_t>(draw_.number()) : 0});
  end_message();
  encode(writer_, run);
}

void Script::drop_program() {
  end_message();
  wire::encode_drop(writer_, draw_.rarely(32) ? draw_.number() : 1 + draw_.below(8));
}

// After a call that failed, else the server discards what follows. The calls are thread 1's.
void Script::go_on() {
  for (const Tag each : {Tag::kGoOn, Tag::kThread}) {
    tag(each);
    writer_.varint(1);
  }
}

// In a frame of its own. What is cancelled stops thread 1.
void Script::cancel() {
  end_frame();
  wire::encode_cancel(writer_, draw_.rarely(8) ? draw_.number() : draw_.below(64));
  end_frame();
}

void Script::end_frame() {
  end_message();
  if (!writer_.empty())
    receiver_.frame(writer_.take());
  names_ = {};
}

void Script::step() {
  using Step = void (Script::*)();
  constexpr std::array<Step, 40> kSteps = {
      &Script::resize,    &Script::resize,       &Script::resize,      &Script::upload,
      &Script::upload,    &Script::begin_upload, &Script::send_chunk,  &Script::send_chunk,
      &Script::signature, &Script::signature,    &Script::signature,   &Script::signature,
      &Script::call,      &Script::call,         &Script::call,        &Script::call,
      &Script::call,      &Script::call,         &Script::query_call,  &Script::query_call,
      &Script::read,      &Script::read,         &Script::free,        &Script::free,
      &Script::query,     &Script::generator,    &Script::context,     &Script::thread,
      &Script::stream,    &Script::end_frame,    &Script::end_frame,   &Script::end_frame,
      &Script::program,   &Script::run_program,  &Script::run_program, &Script::drop_program,
      &Script::cancel,    &Script::file,         &Script::file,        &Script::file,
  };
  // What leads to calls, without the messages that end most sessions.
  constexpr std::array<Step, 18> kTameSteps = {
      &Script::resize,  &Script::resize,      &Script::resize,    &Script::upload,
      &Script::upload,  &Script::signature,   &Script::signature, &Script::signature,
      &Script::call,    &Script::call,        &Script::call,      &Script::call,
      &Script::call,    &Script::call,        &Script::go_on,     &Script::end_frame,
      &Script::program, &Script::run_program,
  };
  if (draw_.is_tame())
    return (this->*kTameSteps[draw_.below(kTameSteps.size())])();
  (this->*kSteps[draw_.below(kSteps.size())])();
  if (draw_.rarely(128))
    writer_.raw(draw_.bytes(8));
}

void Script::run() {
  for (int i = 0; i < kMostSteps && !draw_.empty(); ++i)
    step();
  end_frame();
}

}  // namespace torch_remote::fuzz
