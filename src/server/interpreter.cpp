#include "server/interpreter.h"

#include "base/error.h"
#include "server/context.h"
#include "server/errors.h"
#include "wire/limits.h"

namespace torch_remote::server {

Interpreter::Interpreter(const Devices& devices, const OperatorTable& table, Uploads& uploads,
                         Replies& replies, CallLog* call_log, uint64_t max_memory)
    : devices_(devices),
      table_(table),
      uploads_(uploads),
      replies_(replies),
      call_log_(call_log),
      storages_(uploads, {.bytes = max_memory}),
      generators_(devices),
      failures_(replies),
      executor_(devices, storages_, generators_, failures_, call_log) {}

Interpreter::Handler Interpreter::find_handler(uint8_t tag) {
  switch (static_cast<wire::Tag>(tag)) {
    case wire::Tag::kCall:
      return &Interpreter::on_call;
    case wire::Tag::kSignature:
      return &Interpreter::on_signature;
    case wire::Tag::kContext:
      return &Interpreter::on_context;
    case wire::Tag::kGenerator:
      return &Interpreter::on_generator;
    case wire::Tag::kResize:
      return &Interpreter::on_resize;
    case wire::Tag::kBegin:
      return &Interpreter::on_begin;
    case wire::Tag::kFree:
      return &Interpreter::on_free;
    case wire::Tag::kRead:
      return &Interpreter::on_read;
    case wire::Tag::kQuery:
      return &Interpreter::on_query;
    case wire::Tag::kHeal:
      return &Interpreter::on_heal;
    case wire::Tag::kStream:
    case wire::Tag::kProgram:
      throw ProtocolError(std::string("this server does not understand ") +
                          to_text(static_cast<wire::Tag>(tag)) + " yet");
    default:
      throw ProtocolError("tag " + std::to_string(tag) + " is no message to a server");
  }
}

void Interpreter::apply(std::span<const std::byte> payload) {
  wire::Reader reader(payload);
  names_ = {};
  try {
    while (!reader.empty()) {
      const Handler handler = find_handler(reader.u8());
      (this->*handler)(reader);
    }
  } catch (DeviceLost& lost) {
    executor_.locate(lost.error);
    throw;
  }
  executor_.let_go();
}

wire::Counters Interpreter::counters() const {
  return {executor_.calls(), executor_.mispredicted(), storages_.size(), storages_.total_bytes()};
}

// --- calls

void Interpreter::on_signature(wire::Reader& reader) {
  wire::Signature signature =
      wire::decode_signature(reader, static_cast<uint32_t>(operators_.size()));
  if (signature.introduction) {
    operators_.push_back(
        std::make_unique<const Operator>(table_.find(std::move(*signature.introduction))));
  }
  const Operator& operation = *operators_.at(signature.operator_id);
  auto call = std::make_unique<CallPlan>();
  call->operation = &operation;
  call->slot = signature.slot;
  call->plan = marshal::make_plan(signature, operation.callee, devices_.device(signature.device));
  if (signature.slot >= signatures_.size())
    signatures_.resize(signature.slot + 1);
  signatures_[signature.slot] = std::move(call);
}

const CallPlan& Interpreter::read_call(wire::Reader& reader) {
  const uint64_t slot = reader.varint();
  if (slot >= signatures_.size() || signatures_[slot] == nullptr) {
    throw ProtocolError("a call has a signature that was not sent");
  }
  return *signatures_[slot];
}

void Interpreter::on_call(wire::Reader& reader) {
  const CallPlan& call = read_call(reader);
  marshal::read_slots(call.plan, reader, names_, slots_);
  executor_.call(call, slots_);
}

void Interpreter::query_call(uint64_t request, wire::Reader& reader) {
  const CallPlan& call = read_call(reader);
  const uint64_t first = reader.varint();
  const uint64_t names = reader.count(wire::kMaxTensors, "names for results");
  marshal::read_slots(call.plan, reader, names_, slots_);
  const Executor::Answer answer = executor_.query(call, slots_, first, names);
  if (answer.failure != nullptr)
    return replies_.error(request, *answer.failure);
  executor_.note_told();
  wire::Writer body;
  wire::encode(body, answer.results);
  replies_.reply(request, body.view());
}

// --- state

void Interpreter::on_context(wire::Reader& reader) {
  apply_context(wire::decode_context(reader));
}

void Interpreter::on_generator(wire::Reader& reader) {
  const wire::GeneratorMessage message = wire::decode_generator(reader);
  try {
    generators_.apply(message);
  } catch (...) {
    answer_failure(0, std::current_exception(), "generator");
  }
}

void Interpreter::on_resize(wire::Reader& reader) {
  const wire::Resize message = wire::decode_resize(reader);
  executor_.begin_other();
  if (!storages_.contains(message.storage)) {
    storages_.make(message.storage, message.nbytes, devices_.device(message.device));
    return;
  }
  Entry& entry = storages_.find(message.storage);
  try {
    storages_.resize(entry, message.nbytes);
  } catch (...) {
    executor_.fail_other(std::current_exception(), "resize", entry);
  }
}

void Interpreter::upload(const wire::Begin& begin, Entry& entry) {
  if (begin.is_inline)
    return storages_.write(entry, begin.offset, begin.bytes);
  storages_.expect_upload(entry, begin.offset, uploads_.take(begin.upload, begin.length));
}

void Interpreter::on_begin(wire::Reader& reader) {
  const wire::Begin begin = wire::decode_begin(reader);
  executor_.begin_other();
  Entry& entry = storages_.find(begin.storage);
  try {
    executor_.keep_other(entry);
    upload(begin, entry);
  } catch (...) {
    executor_.fail_other(std::current_exception(), "upload", entry);
  }
}

void Interpreter::on_free(wire::Reader& reader) {
  executor_.let_go();
  for (const uint64_t name : wire::decode_free(reader))
    storages_.free(name);
}

// --- answers

void Interpreter::on_heal(wire::Reader& reader) {
  executor_.heal(wire::decode_heal(reader));
}

void Interpreter::answer_failure(uint64_t request, std::exception_ptr cause, const char* what) {
  replies_.error(request, describe_failure(std::move(cause), what));
}

void Interpreter::on_read(wire::Reader& reader) {
  const wire::Read read = wire::decode_read(reader);
  try {
    answer_view(read);
  } catch (...) {
    answer_failure(read.request, std::current_exception(), "read");
  }
}

void Interpreter::answer_view(const wire::Read& read) {
  Entry& entry = storages_.find(read.storage);
  storages_.settle(entry);
  if (const Poison cause = entry.cause())
    return replies_.error(read.request, *cause);
  const at::Tensor view =
      storages_.resolve(entry, marshal::make_tensor_recipe(read.spec), read.offset);
  executor_.note_told(entry);
  if (!view.is_cpu())
    return replies_.tensor(read.request, view.cpu(), nullptr);
  if (entry.sending == nullptr)
    entry.sending = std::make_shared<const char>();
  replies_.tensor(read.request, view, entry.sending);
}

void Interpreter::on_query(wire::Reader& reader) {
  const uint64_t request = reader.varint();
  if (request == 0)
    throw ProtocolError("request 0 is never valid");
  switch (wire::decode_query_kind(reader)) {
    case wire::QueryKind::kCall:
      return query_call(request, reader);
    case wire::QueryKind::kBarrier:
      return query_barrier(request);
    case wire::QueryKind::kCounters:
      return query_counters(request);
    case wire::QueryKind::kGenerator:
      return query_generator(request, reader);
    case wire::QueryKind::kOutcome:
      return query_outcome(request);
    case wire::QueryKind::kContext:
      return query_context(request);
    case wire::QueryKind::kOperators:
      return query_operators(request);
    case wire::QueryKind::kOperator:
      return query_operator(request, reader);
    case wire::QueryKind::kTaints:
      return query_taints(request, reader);
  }
}

bool Interpreter::finish_work(uint64_t request) {
  if (call_log_ != nullptr)
    call_log_->flush();
  try {
    for (unsigned i = 0; i < devices_.count(); ++i)
      devices_.synchronize(static_cast<uint8_t>(i));
  } catch (...) {
    answer_failure(request, std::current_exception(), "synchronize");
    return false;
  }
  executor_.note_good();
  return true;
}

// Also the place where failures come out that nobody has read.
void Interpreter::query_barrier(uint64_t request) {
  if (!finish_work(request))
    return;
  wire::Writer body;
  encode(body, failures_.untold());
  replies_.reply(request, body.view());
}

void Interpreter::query_taints(uint64_t request, wire::Reader& reader) {
  const wire::TaintQuery query = wire::decode_taint_query(reader);
  wire::Writer body;
  for (const uint64_t name : query.names) {
    const Entry& entry = storages_.find(name);
    body.varint(entry.taint == nullptr ? wire::kUntouched : entry.taint->answer(query.cause));
  }
  replies_.reply(request, body.view());
}

void Interpreter::query_outcome(uint64_t request) {
  const Poison failure = executor_.outcome();
  executor_.forgive();
  if (!finish_work(request))
    return;
  if (failure != nullptr)
    return replies_.error(request, *failure);
  replies_.reply(request, {});
}

void Interpreter::query_counters(uint64_t request) {
  wire::Writer body;
  encode(body, counters());
  replies_.reply(request, body.view());
}

void Interpreter::query_context(uint64_t request) {
  wire::Writer body;
  encode_settings(body, present_context());
  replies_.reply(request, body.view());
}

void Interpreter::query_operators(uint64_t request) {
  wire::Writer body;
  wire::encode_fingerprints(body, table_.fingerprints());
  replies_.reply(request, body.view());
}

void Interpreter::query_operator(uint64_t request, wire::Reader& reader) {
  wire::Writer body;
  encode(body, table_.describe(wire::decode_operator_query(reader)));
  replies_.reply(request, body.view());
}

void Interpreter::query_generator(uint64_t request, wire::Reader& reader) {
  const uint64_t name = reader.varint();
  try {
    if (generators_.has_kept(name))
      executor_.note_told();
    replies_.reply(request, generators_.state(name));
  } catch (...) {
    answer_failure(request, std::current_exception(), "generator");
  }
}

}  // namespace torch_remote::server
