// QUERY kOperators and kOperator: which operators the client may call.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/operators.h"

namespace torch_remote::server {
namespace {

class OperatorHandler : public Handler {
 public:
  OperatorHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&OperatorHandler::query_operators>(wire::QueryKind::kOperators, *this);
    table.add<&OperatorHandler::query_operator>(wire::QueryKind::kOperator, *this);
  }

 private:
  void query_operators(uint64_t request, wire::Reader& /*reader*/) {
    answer_with(session_.replies, request, [&](wire::Writer& body) {
      wire::encode_fingerprints(body, session_.operators.fingerprints());
    });
  }

  void query_operator(uint64_t request, wire::Reader& reader) {
    answer_with(session_.replies, request, [&](wire::Writer& body) {
      wire::encode(body, session_.operators.describe(wire::decode_operator_query(reader)));
    });
  }

  SessionState& session_;
};

}  // namespace

std::unique_ptr<Handler> make_operator_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<OperatorHandler>(session, table);
}

}  // namespace torch_remote::server
