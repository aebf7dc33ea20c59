// SIGNATURE, which becomes a plan; CALL; and calls that the client waits for.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"

namespace torch_remote::server {
namespace {

class CallHandler : public Handler {
 public:
  CallHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&CallHandler::on_signature>(wire::Tag::kSignature, *this);
    table.add<&CallHandler::on_call>(wire::Tag::kCall, *this);
    table.add<&CallHandler::query_call>(wire::QueryKind::kCall, *this);
    table.add<&CallHandler::query_checked_call>(wire::QueryKind::kCheckedCall, *this);
  }

 private:
  void on_signature(wire::Reader& reader);
  void on_call(wire::Reader& reader);
  void query_call(uint64_t request, wire::Reader& reader);
  void query_checked_call(uint64_t request, wire::Reader& reader);
  // The plan of the call, whose slots are read.
  const CallPlan& read_call(uint64_t index, wire::Reader& reader);

  SessionState& session_;
};

void CallHandler::on_signature(wire::Reader& reader) {
  const uint64_t encoded = reader.rest().size();
  session_.plans.add(wire::decode_signature(reader, session_.plans.operators()), encoded);
}

const CallPlan& CallHandler::read_call(uint64_t index, wire::Reader& reader) {
  const CallPlan& call = session_.plans.find(index);
  marshal::read_slots(call.plan, reader, session_.names, session_.slots);
  return call;
}

void CallHandler::on_call(wire::Reader& reader) {
  const CallPlan& call = read_call(wire::decode_call(reader), reader);
  session_.executor.call(call, session_.slots);
}

void CallHandler::query_checked_call(uint64_t request, wire::Reader& reader) {
  const CallPlan& call = read_call(wire::decode_call(reader), reader);
  const Cause failure = session_.executor.checked_call(call, session_.slots);
  if (!session_.finish_work(request))
    return;
  if (failure != nullptr)
    return session_.replies.error(request, *failure);
  session_.replies.reply(request, {});
}

void CallHandler::query_call(uint64_t request, wire::Reader& reader) {
  const wire::QueriedCall query = wire::decode_queried_call(reader);
  const CallPlan& call = read_call(query.index, reader);
  const Executor::Answer answer =
      session_.executor.query(call, session_.slots, query.first, query.names);
  if (answer.failure != nullptr)
    return session_.replies.error(request, *answer.failure);
  answer_with(session_.replies, request,
              [&](wire::Writer& body) { wire::encode(body, answer.results); });
}

}  // namespace

std::unique_ptr<Handler> make_call_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<CallHandler>(session, table);
}

}  // namespace torch_remote::server
