// CONTEXT, THREAD and GO_ON: with which settings, and for whom, the messages that follow are
// applied.
#include "server/device/context.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"

namespace torch_remote::server {
namespace {

class ContextHandler : public Handler {
 public:
  ContextHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&ContextHandler::on_context>(wire::Tag::kContext, *this);
    table.add<&ContextHandler::on_thread>(wire::Tag::kThread, *this);
    table.add<&ContextHandler::on_go_on>(wire::Tag::kGoOn, *this);
    table.add<&ContextHandler::query_context>(wire::QueryKind::kContext, *this);
  }

 private:
  void on_context(wire::Reader& reader) { apply_context(wire::decode_context(reader)); }

  void on_thread(wire::Reader& reader) {
    session_.threads.set_current(wire::decode_thread(reader));
  }

  void on_go_on(wire::Reader& reader) { session_.threads.go_on(wire::decode_thread(reader)); }

  void query_context(uint64_t request, wire::Reader& /*reader*/) {
    answer_with(session_.replies, request,
                [](wire::Writer& body) { wire::encode_settings(body, present_context()); });
  }

  SessionState& session_;
};

}  // namespace

std::unique_ptr<Handler> make_context_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<ContextHandler>(session, table);
}

}  // namespace torch_remote::server
