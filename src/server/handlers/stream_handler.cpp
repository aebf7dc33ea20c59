// STREAM, and questions that wait for work: Note [Streams] in wire/streams.h.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/streams.h"

namespace torch_remote::server {
namespace {

class StreamHandler : public Handler {
 public:
  StreamHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&StreamHandler::on_stream>(wire::Tag::kStream, *this);
    table.add<&StreamHandler::query_stream>(wire::QueryKind::kStream, *this);
    table.add<&StreamHandler::query_event>(wire::QueryKind::kEvent, *this);
    table.add<&StreamHandler::query_elapsed>(wire::QueryKind::kElapsed, *this);
    table.add<&StreamHandler::query_barrier>(wire::QueryKind::kBarrier, *this);
  }

 private:
  void on_stream(wire::Reader& reader);
  void apply(const wire::StreamMessage& message);
  void query_stream(uint64_t request, wire::Reader& reader);
  void query_event(uint64_t request, wire::Reader& reader);
  void query_elapsed(uint64_t request, wire::Reader& reader);
  void query_barrier(uint64_t request, wire::Reader& reader);

  SessionState& session_;
};

void StreamHandler::on_stream(wire::Reader& reader) {
  const wire::StreamMessage message = wire::decode_stream(reader);
  try {
    apply(message);
  } catch (...) {
    answer_failure(session_.replies, 0, std::current_exception(), "stream");
  }
}

void StreamHandler::apply(const wire::StreamMessage& message) {
  Streams& streams = session_.streams;
  StorageTable& storages = session_.storages;
  switch (message.action) {
    case wire::StreamAction::kUse:
      return streams.use(message.device, message.stream);
    case wire::StreamAction::kRecord:
      storages.settle_stream(message.device, message.stream);
      return streams.record(message.name, message.device, message.stream, message.is_timed);
    case wire::StreamAction::kWait:
      return streams.wait(message.name, message.device, message.stream);
    case wire::StreamAction::kForget:
      return streams.forget(message.name);
    case wire::StreamAction::kRecordStream:
      return storages.record_stream(storages.find(message.name), message.device, message.stream);
  }
}

void StreamHandler::query_stream(uint64_t request, wire::Reader& reader) {
  const wire::DoneQuery query = wire::decode_stream_query(reader);
  Streams& streams = session_.streams;
  Replies& replies = session_.replies;
  try {
    session_.storages.settle_stream(query.device, query.stream);
    if (query.waits)
      streams.when_done(query.device, query.stream, answer_done(replies, request));
    else
      replies.reply(request, wire::done_answer(streams.is_done(query.device, query.stream)));
  } catch (...) {
    answer_failure(replies, request, std::current_exception(), "stream");
  }
}

void StreamHandler::query_event(uint64_t request, wire::Reader& reader) {
  const wire::DoneQuery query = wire::decode_event_query(reader);
  Streams& streams = session_.streams;
  Replies& replies = session_.replies;
  try {
    if (query.waits)
      streams.when_happened(query.event, answer_done(replies, request));
    else
      replies.reply(request, wire::done_answer(streams.has_happened(query.event)));
  } catch (...) {
    answer_failure(replies, request, std::current_exception(), "event");
  }
}

void StreamHandler::query_elapsed(uint64_t request, wire::Reader& reader) {
  const wire::ElapsedQuery query = wire::decode_elapsed_query(reader);
  Replies& replies = session_.replies;
  try {
    const double elapsed = session_.streams.elapsed(query.first, query.second);
    replies.reply(request, wire::elapsed_answer(elapsed));
  } catch (...) {
    answer_failure(replies, request, std::current_exception(), "elapsed_time");
  }
}

// Everything before it is done; failures of earlier calls have been reported by now.
void StreamHandler::query_barrier(uint64_t request, wire::Reader& /*reader*/) {
  session_.storages.write_arrived();  // the client has waited for the bytes
  if (session_.finish_work(request))
    session_.replies.reply(request, {});
}

}  // namespace

std::unique_ptr<Handler> make_stream_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<StreamHandler>(session, table);
}

}  // namespace torch_remote::server
