// QUERY kBarrier: everything before it is done.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"

namespace torch_remote::server {
namespace {

class BarrierHandler : public Handler {
 public:
  BarrierHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&BarrierHandler::query_barrier>(wire::QueryKind::kBarrier, *this);
  }

 private:
  // Failures of earlier calls have been reported by now.
  void query_barrier(uint64_t request, wire::Reader& /*reader*/) {
    session_.storages.write_arrived();  // the client has waited for the bytes
    if (session_.finish_work(request))
      session_.replies.reply(request, {});
  }

  SessionState& session_;
};

}  // namespace

std::unique_ptr<Handler> make_barrier_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<BarrierHandler>(session, table);
}

}  // namespace torch_remote::server
