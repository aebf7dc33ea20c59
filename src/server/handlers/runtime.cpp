// What an Interpreter does and answers for streams, events and memory.
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "server/executor/errors.h"
#include "server/executor/memory.h"
#include "server/handlers/interpreter.h"
#include "wire/limits.h"

namespace torch_remote::server {

void Interpreter::on_stream(wire::Reader& reader) {
  const wire::StreamMessage message = wire::decode_stream(reader);
  try {
    apply_stream(message);
  } catch (...) {
    answer_failure(0, std::current_exception(), "stream");
  }
}

void Interpreter::apply_stream(const wire::StreamMessage& message) {
  switch (message.action) {
    case wire::StreamAction::kUse:
      return streams_.use(message.device, message.stream);
    case wire::StreamAction::kRecord:
      storages_.settle_stream(message.device, message.stream);
      return streams_.record(message.name, message.device, message.stream, message.is_timed);
    case wire::StreamAction::kWait:
      return streams_.wait(message.name, message.device, message.stream);
    case wire::StreamAction::kForget:
      return streams_.forget(message.name);
    case wire::StreamAction::kRecordStream:
      return storages_.record_stream(storages_.find(message.name), message.device, message.stream);
  }
}

Streams::OnDone Interpreter::answer_done(uint64_t request) {
  return [this, request](std::exception_ptr failure) {
    if (failure == nullptr)
      return replies_.reply(request, wire::done_answer(true));
    try {
      answer_failure(request, failure, "synchronize");
    } catch (const DeviceLost& lost) {
      replies_.error(request, lost.error);  // the executor finds it too, and ends the session
    }
  };
}

void Interpreter::query_stream(uint64_t request, wire::Reader& reader) {
  const wire::DoneQuery query = wire::decode_stream_query(reader);
  try {
    storages_.settle_stream(query.device, query.stream);
    if (query.waits)
      streams_.when_done(query.device, query.stream, answer_done(request));
    else
      replies_.reply(request, wire::done_answer(streams_.is_done(query.device, query.stream)));
  } catch (...) {
    answer_failure(request, std::current_exception(), "stream");
  }
}

void Interpreter::query_event(uint64_t request, wire::Reader& reader) {
  const wire::DoneQuery query = wire::decode_event_query(reader);
  try {
    if (query.waits)
      streams_.when_happened(query.event, answer_done(request));
    else
      replies_.reply(request, wire::done_answer(streams_.has_happened(query.event)));
  } catch (...) {
    answer_failure(request, std::current_exception(), "event");
  }
}

void Interpreter::query_elapsed(uint64_t request, wire::Reader& reader) {
  const wire::ElapsedQuery query = wire::decode_elapsed_query(reader);
  try {
    replies_.reply(request, wire::elapsed_answer(streams_.elapsed(query.first, query.second)));
  } catch (...) {
    answer_failure(request, std::current_exception(), "elapsed_time");
  }
}

// Where streams are used, the copy to pinned memory is waited for on another thread, so that calls
// of other streams go on.
void Interpreter::answer_from_device(uint64_t request, const at::Tensor& view, Entry& entry) {
  if (view.nbytes() >= kLargeRead)
    return answer_in_pieces(request, view, entry);
  std::shared_ptr<const void> token;  // of the copy in host memory
  if (view.nbytes() > wire::kMaxInlineBytes)
    token = storages_.reply_token(entry, view.nbytes());
  if (!streams_.has_several())
    return replies_.tensor(request, view.cpu(), token);
  const at::Tensor plain = view.resolve_conj().resolve_neg().contiguous();
  const at::Tensor host =
      at::empty(plain.sizes(), plain.options().device(at::kCPU).pinned_memory(true));
  host.copy_(plain, true);
  const auto answer = [this, request, host, token](std::exception_ptr failure) {
    if (failure != nullptr)
      return answer_done(request)(failure);
    const c10::InferenceMode inference_mode;
    replies_.tensor(request, host, token);
  };
  streams_.when_done(entry.number, streams_.current(entry.number), answer);
}

void Interpreter::answer_in_pieces(uint64_t request, const at::Tensor& view, Entry& entry) {
  const std::shared_ptr<const void> token = token_for(view, entry);
  DeviceReads::Read read{request, view.resolve_conj().resolve_neg().contiguous(), token};
  const auto answer = [this, read = std::move(read)](std::exception_ptr failure) {
    if (failure != nullptr)
      return answer_done(read.request)(failure);
    device_reads_.add(read);
  };
  streams_.when_done(entry.number, streams_.current(entry.number), answer);
}

void Interpreter::query_memory(uint64_t request, wire::Reader& reader) {
  const wire::MemoryQuery query = wire::decode_memory_query(reader);
  try {
    if (query.action == wire::MemoryAction::kEmptyCache) {
      device_reads_.empty_cache();
      uploads_.memory().empty();
    }
    wire::Writer body;
    encode(body, device_memory(devices_, storages_, query));
    replies_.reply(request, body.view());
  } catch (...) {
    answer_failure(request, std::current_exception(), "memory");
  }
}

}  // namespace torch_remote::server
