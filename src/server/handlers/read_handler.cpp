// READ: the elements of a view.
#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "server/executor/entry.h"
#include "server/executor/failures.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

class ReadHandler : public Handler {
 public:
  ReadHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&ReadHandler::on_read>(wire::Tag::kRead, *this);
  }

 private:
  void on_read(wire::Reader& reader);
  void answer(const wire::Read& read);
  void answer_from_device(uint64_t request, const at::Tensor& view, Entry& entry);
  void answer_in_pieces(uint64_t request, const at::Tensor& view, Entry& entry);
  // What a reply with this value holds until it is sent.
  std::shared_ptr<const void> token_for(const at::Tensor& view, Entry& entry);
  // Calls it when the stream that has made the storage's value is done.
  void when_made(const Entry& entry, Streams::OnDone on_done);

  SessionState& session_;
};

// Called when a storage got memory and has no value yet. The next message may be an upload to it,
// which comes with memory of its own.
void leave_room_for_upload(const Entry& entry, const StorageTotals& totals, Uploads& uploads) {
  if (totals.limit != UINT64_MAX)
    uploads.memory().set_room(totals.limit - std::min(totals.held - entry.held, totals.limit));
}

// False: a reply is sent from a copy.
bool is_sent_as_it_is(const at::Tensor& view) {
  return view.is_contiguous() && !view.is_conj() && !view.is_neg();
}

void ReadHandler::on_read(wire::Reader& reader) {
  const wire::Read read = wire::decode_read(reader);
  ++session_.answers;
  try {
    answer(read);
  } catch (...) {
    wire::Error failure = describe_failure(std::current_exception(), "read");
    const Entry& entry = session_.storages.find(read.storage);
    session_.executor.note_shortage(failure, entry.number);
    if (failure.kind == wire::ErrorKind::kOutOfMemory)
      failure.call = entry.made.call;  // whose line the client knows
    session_.replies.error(read.request, failure);
  }
}

void ReadHandler::answer(const wire::Read& read) {
  StorageTable& storages = session_.storages;
  Entry& entry = storages.find(read.storage);
  if (session_.threads.cause() != nullptr)
    return session_.replies.error(read.request, *session_.threads.cause());
  if (entry.missing != nullptr)
    return session_.replies.error(read.request, *entry.missing);
  storages.prepare(entry, false);
  const auto had_memory = static_cast<bool>(entry.storage);
  const at::Tensor view =
      storages.resolve(entry, marshal::make_tensor_recipe(read.spec), read.offset);
  if (!had_memory)
    leave_room_for_upload(entry, storages.account().totals(), session_.uploads);
  if (!view.is_cpu())
    return answer_from_device(read.request, view, entry);
  const std::shared_ptr<const void> token = token_for(view, entry);
  session_.replies.tensor(read.request, for_reply(entry, view), token);
}

// A small value is copied into the reply, where it counts.
std::shared_ptr<const void> ReadHandler::token_for(const at::Tensor& view, Entry& entry) {
  if (view.nbytes() <= wire::kMaxInlineBytes)
    return nullptr;
  const bool is_copied = entry.is_pinned() || !is_sent_as_it_is(view);
  return session_.storages.reply_token(entry, is_copied ? view.nbytes() : 0);
}

void ReadHandler::when_made(const Entry& entry, Streams::OnDone on_done) {
  Streams& streams = session_.streams;
  streams.when_done(entry.number, streams.current(entry.number), std::move(on_done));
}

// Where streams are used, the copy to pinned memory is waited for on another thread, so that calls
// of other streams go on.
void ReadHandler::answer_from_device(uint64_t request, const at::Tensor& view, Entry& entry) {
  if (view.nbytes() >= kLargeRead)
    return answer_in_pieces(request, view, entry);
  std::shared_ptr<const void> token;  // of the copy in host memory
  if (view.nbytes() > wire::kMaxInlineBytes)
    token = session_.storages.reply_token(entry, view.nbytes());
  Replies& replies = session_.replies;
  if (!session_.streams.has_several())
    return replies.tensor(request, view.cpu(), token);
  const at::Tensor plain = view.resolve_conj().resolve_neg().contiguous();
  const at::Tensor host =
      at::empty(plain.sizes(), plain.options().device(at::kCPU).pinned_memory(true));
  host.copy_(plain, true);
  when_made(entry, [&replies, request, host, token](std::exception_ptr failure) {
    if (failure != nullptr)
      return answer_done(replies, request)(failure);
    const c10::InferenceMode inference_mode;
    replies.tensor(request, host, token);
  });
}

void ReadHandler::answer_in_pieces(uint64_t request, const at::Tensor& view, Entry& entry) {
  const std::shared_ptr<const void> token = token_for(view, entry);
  const at::Tensor plain = view.resolve_conj().resolve_neg().contiguous();
  DeviceReads::Read read{request, for_reply(entry, plain), token};
  when_made(entry, [&replies = session_.replies, &reads = session_.device_reads,
                    read = std::move(read)](std::exception_ptr failure) {
    if (failure != nullptr)
      return answer_done(replies, read.request)(failure);
    reads.add(read);
  });
}

}  // namespace

std::unique_ptr<Handler> make_read_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<ReadHandler>(session, table);
}

}  // namespace torch_remote::server
