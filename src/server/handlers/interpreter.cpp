#include "server/handlers/interpreter.h"

#include <algorithm>

#include "base/error.h"
#include "server/device/context.h"
#include "server/device/nvml.h"
#include "server/executor/errors.h"
#include "server/groups/groups.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// Called when a storage got memory and has no value yet. The next message may be an upload to it,
// which comes with memory of its own.
void leave_room_for_upload(const Entry& entry, const StorageTotals& totals, Uploads& uploads) {
  if (totals.limit != UINT64_MAX)
    uploads.memory().set_room(totals.limit - std::min(totals.held - entry.held, totals.limit));
}

uint64_t introduction_bytes(const wire::Introduction& introduction) {
  uint64_t bytes = introduction.name.size() + introduction.overload.size();
  for (const std::string& argument : introduction.arguments)
    bytes += argument.size() + sizeof(argument);
  return bytes;
}

// False: a reply is sent from a copy.
bool is_sent_as_it_is(const at::Tensor& view) {
  return view.is_contiguous() && !view.is_conj() && !view.is_neg();
}

}  // namespace

Interpreter::Interpreter(const Devices& devices, const OperatorTable& table, Uploads& uploads,
                         Replies& replies, CallLog* call_log, uint64_t max_memory, bool may_connect)
    : devices_(devices),
      table_(table),
      uploads_(uploads),
      replies_(replies),
      call_log_(call_log),
      device_reads_(replies, [this](uint64_t request,
                                    std::exception_ptr failure) { answer_done(request)(failure); }),
      streams_(devices),
      storages_(uploads, streams_, {.bytes = max_memory, .others = counted_}),
      generators_(devices),
      threads_(replies, counted_),
      profile_(devices, streams_),
      executor_(devices, storages_, generators_, threads_, profile_, call_log),
      groups_(std::make_unique<Groups>(devices, replies, may_connect)) {}

Interpreter::~Interpreter() = default;

void Interpreter::close_links() {
  peers_.reset();
  groups_->close_all();
}

Interpreter::Handler Interpreter::find_handler(wire::Tag tag) {
  switch (tag) {
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
    case wire::Tag::kThread:
      return &Interpreter::on_thread;
    case wire::Tag::kGoOn:
      return &Interpreter::on_go_on;
    case wire::Tag::kStream:
      return &Interpreter::on_stream;
    default:
      return nullptr;
  }
}

// For a message of a newer client.
void Interpreter::skip(wire::Tag tag) {
  wire::check_limit("messages of an unknown kind", ++skipped_, wire::kMaxSkippedTags);
  const std::string name = wire::to_text(tag);
  wire::Error error;
  error.kind = wire::ErrorKind::kRefused;
  error.operator_name =
      name == "unknown" ? "message " + std::to_string(static_cast<int>(tag)) : name;
  error.message = "this server does not know this kind of message, and has skipped it";
  replies_.error(0, error);
}

void Interpreter::apply(std::span<const std::byte> payload) {
  wire::Reader reader(payload);
  names_ = {};
  const Groups::Scope groups(*groups_);
  try {
    while (!reader.empty()) {
      wire::ReceivedMessage message = wire::next_message(reader);
      const Handler handler = find_handler(message.tag);
      if (C10_UNLIKELY(handler == nullptr)) {
        skip(message.tag);
        continue;
      }
      (this->*handler)(message.body);
      message.body.finish();
    }
  } catch (DeviceLost& lost) {
    executor_.locate(lost.error);
    throw;
  }
  executor_.drop_storages();
}

wire::Counters Interpreter::counters() const {
  const StorageTotals totals = storages_.totals();
  return {executor_.calls(), executor_.mispredicted(), totals.storages, totals.bytes};
}

// --- calls

void Interpreter::on_signature(wire::Reader& reader) {
  const uint64_t encoded = reader.rest().size();
  wire::Signature signature =
      wire::decode_signature(reader, static_cast<uint32_t>(operators_.size()));
  if (signature.introduction) {
    signature_bytes_ += introduction_bytes(*signature.introduction);  // stays with the operator
    Operator found = table_.find(std::move(*signature.introduction));
    signature_bytes_ += sizeof(found) + found.callee.refusal.size();
    if (call_log_ != nullptr)
      found.place = call_log_->add_operator(found.name);
    operators_.push_back(std::make_unique<const Operator>(std::move(found)));
  }
  const Operator& operation = *operators_.at(signature.operator_id);
  auto call = std::make_unique<CallPlan>();
  call->operation = &operation;
  call->slot = signature.slot;
  call->plan = marshal::make_plan(signature, operation.callee, devices_.device(signature.device));
  call->bytes = marshal::memory_of(call->plan, encoded);
  if (signature.slot >= signatures_.size())
    signatures_.resize(signature.slot + 1);
  std::unique_ptr<const CallPlan>& place = signatures_[signature.slot];
  signature_bytes_ += call->bytes - (place == nullptr ? 0 : place->bytes);
  wire::check_limit("bytes of signatures", signature_bytes_, kMaxSignatureMemory);
  place = std::move(call);
}

const CallPlan& Interpreter::plan_at(uint64_t slot) const {
  if (slot >= signatures_.size() || signatures_[slot] == nullptr)
    throw ProtocolError("a call uses a signature that was never sent");
  return *signatures_[slot];
}

void Interpreter::on_call(wire::Reader& reader) {
  const CallPlan& call = plan_at(wire::decode_call(reader));
  marshal::read_slots(call.plan, reader, names_, slots_);
  executor_.call(call, slots_);
}

void Interpreter::query_checked_call(uint64_t request, wire::Reader& reader) {
  const CallPlan& call = plan_at(wire::decode_call(reader));
  marshal::read_slots(call.plan, reader, names_, slots_);
  const Cause failure = executor_.checked_call(call, slots_);
  if (!finish_work(request))
    return;
  if (failure != nullptr)
    return replies_.error(request, *failure);
  replies_.reply(request, {});
}

void Interpreter::query_call(uint64_t request, wire::Reader& reader) {
  const wire::QueriedCall query = wire::decode_queried_call(reader);
  const CallPlan& call = plan_at(query.slot);
  marshal::read_slots(call.plan, reader, names_, slots_);
  const Executor::Answer answer = executor_.query(call, slots_, query.first, query.names);
  if (answer.failure != nullptr)
    return replies_.error(request, *answer.failure);
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
  const bool is_made_or_freed = message.action == wire::GeneratorAction::kMake ||
                                message.action == wire::GeneratorAction::kFree;
  if (threads_.cause() != nullptr && !is_made_or_freed &&
      !threads_.is_made_since(generators_.made(message.name)))
    return;  // discarded
  try {
    generators_.apply(message, {threads_.current(), executor_.number() + 1});
  } catch (...) {
    answer_failure(0, std::current_exception(), "generator");
  }
}

void Interpreter::on_resize(wire::Reader& reader) {
  executor_.resize(wire::decode_resize(reader));
}

void Interpreter::on_thread(wire::Reader& reader) {
  threads_.set_current(wire::decode_thread(reader));
}

void Interpreter::on_go_on(wire::Reader& reader) {
  threads_.go_on(wire::decode_thread(reader));
}

void Interpreter::on_begin(wire::Reader& reader) {
  const wire::Begin begin = wire::decode_begin(reader);
  std::shared_ptr<Staging> staging;
  std::exception_ptr no_memory;
  if (!begin.is_inline) {
    try {
      staging = uploads_.take(begin.upload, begin.length);
    } catch (const c10::OutOfMemoryError&) {
      no_memory = std::current_exception();
    }
  }
  executor_.drop_storages();  // so that a storage whose memory is replaced is its only user
  // If the upload is discarded, its memory is freed when all bytes have arrived.
  executor_.upload(begin.storage, begin.length, [&](Entry& entry) {
    if (no_memory != nullptr)
      std::rethrow_exception(no_memory);
    if (begin.is_inline)
      storages_.write(entry, begin.offset, begin.bytes);
    else
      storages_.expect_upload(entry, begin.offset, std::move(staging));
  });
}

void Interpreter::on_free(wire::Reader& reader) {
  executor_.drop_storages();
  wire::decode_free(reader, [this](uint64_t name) { storages_.free(name); });
}

// --- answers

void Interpreter::answer_failure(uint64_t request, std::exception_ptr cause, const char* what) {
  replies_.error(request, describe_failure(std::move(cause), what));
}

void Interpreter::on_read(wire::Reader& reader) {
  const wire::Read read = wire::decode_read(reader);
  ++answers_;
  try {
    answer_view(read);
  } catch (...) {
    wire::Error failure = describe_failure(std::current_exception(), "read");
    const Entry& entry = storages_.find(read.storage);
    executor_.note_shortage(failure, entry.number);
    if (failure.kind == wire::ErrorKind::kOutOfMemory)
      failure.call = entry.made.call;  // whose line the client knows
    replies_.error(read.request, failure);
  }
}

void Interpreter::answer_view(const wire::Read& read) {
  Entry& entry = storages_.find(read.storage);
  if (threads_.cause() != nullptr)
    return replies_.error(read.request, *threads_.cause());
  if (entry.missing != nullptr)
    return replies_.error(read.request, *entry.missing);
  storages_.prepare(entry, false);
  const auto had_memory = static_cast<bool>(entry.storage);
  const at::Tensor view =
      storages_.resolve(entry, marshal::make_tensor_recipe(read.spec), read.offset);
  if (!had_memory)
    leave_room_for_upload(entry, storages_.totals(), uploads_);
  if (!view.is_cpu())
    return answer_from_device(read.request, view, entry);
  replies_.tensor(read.request, view, token_for(view, entry));
}

// A small value is copied into the reply, where it counts.
std::shared_ptr<const void> Interpreter::token_for(const at::Tensor& view, Entry& entry) {
  if (view.nbytes() <= wire::kMaxInlineBytes)
    return nullptr;
  return storages_.reply_token(entry, is_sent_as_it_is(view) ? 0 : view.nbytes());
}

void Interpreter::on_query(wire::Reader& reader) {
  const wire::Query query = wire::decode_query(reader);
  const uint64_t request = query.request;
  const auto reply = [&](auto&& write) {
    wire::Writer body;
    write(body);
    replies_.reply(request, body.view());
  };
  ++answers_;
  switch (query.kind) {
    case wire::QueryKind::kCall:
      return query_call(request, reader);
    case wire::QueryKind::kBarrier:
      return query_barrier(request);
    case wire::QueryKind::kCounters:
      return reply([&](wire::Writer& body) { encode(body, counters()); });
    case wire::QueryKind::kGenerator:
      return query_generator(request, reader);
    case wire::QueryKind::kCheckedCall:
      return query_checked_call(request, reader);
    case wire::QueryKind::kContext:
      return reply([&](wire::Writer& body) { encode_settings(body, present_context()); });
    case wire::QueryKind::kOperators:
      return reply(
          [&](wire::Writer& body) { wire::encode_fingerprints(body, table_.fingerprints()); });
    case wire::QueryKind::kOperator:
      return reply([&](wire::Writer& body) {
        encode(body, table_.describe(wire::decode_operator_query(reader)));
      });
    case wire::QueryKind::kStream:
      return query_stream(request, reader);
    case wire::QueryKind::kEvent:
      return query_event(request, reader);
    case wire::QueryKind::kElapsed:
      return query_elapsed(request, reader);
    case wire::QueryKind::kMemory:
      return query_memory(request, reader);
    case wire::QueryKind::kTelemetry:
      return query_telemetry(request, reader);
    case wire::QueryKind::kProfile:
      return query_profile(request, reader);
    case wire::QueryKind::kPeer:
      return query_peer(request, reader);
    case wire::QueryKind::kGroup:
      return groups_->query(request, wire::decode_group_query(reader));
    case wire::QueryKind::kCachedUploads:
      return query_cached_uploads(request);
    case wire::QueryKind::kCachedUpload:
      return query_cached_upload(request, reader);
  }
}

void Interpreter::query_telemetry(uint64_t request, wire::Reader& reader) {
  const c10::Device device = devices_.device(wire::decode_telemetry_query(reader));
  wire::Telemetry telemetry;
  if (device.is_cuda())
    telemetry = cuda_telemetry(device.index());
  else
    telemetry.reason = "it is a CPU";
  wire::Writer body;
  encode(body, telemetry);
  replies_.reply(request, body.view());
}

void Interpreter::query_profile(uint64_t request, wire::Reader& reader) {
  const wire::ProfileAction action = wire::decode_profile_query(reader);
  wire::Writer body;
  try {
    if (action == wire::ProfileAction::kStart)
      profile_.start();
    if (action == wire::ProfileAction::kTake)
      encode(body, profile_.take());
    else
      wire::encode_clock(body, CallProfile::now());
  } catch (...) {
    return answer_failure(request, std::current_exception(), "profile");
  }
  replies_.reply(request, body.view());
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

// Failures of earlier calls have been reported by now.
void Interpreter::query_barrier(uint64_t request) {
  storages_.write_arrived();  // the client has waited for the bytes
  if (finish_work(request))
    replies_.reply(request, {});
}

void Interpreter::query_generator(uint64_t request, wire::Reader& reader) {
  const uint64_t name = wire::decode_generator_query(reader);
  if (threads_.cause() != nullptr)
    return replies_.error(request, *threads_.cause());
  try {
    replies_.reply(request, generators_.state(name));
  } catch (...) {
    answer_failure(request, std::current_exception(), "generator");
  }
}

}  // namespace torch_remote::server
