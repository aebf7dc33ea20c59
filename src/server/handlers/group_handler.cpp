// QUERY kGroup: opens and closes process groups. Note [Process groups] in wire/group.h.
#include "server/groups/groups.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/group.h"

namespace torch_remote::server {
namespace {

class GroupHandler : public Handler {
 public:
  GroupHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&GroupHandler::query_group>(wire::QueryKind::kGroup, *this);
  }

  void close() override { session_.groups->close_all(); }

 private:
  void query_group(uint64_t request, wire::Reader& reader) {
    session_.groups->query(request, wire::decode_group_query(reader));
  }

  SessionState& session_;
};

}  // namespace

std::unique_ptr<Handler> make_group_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<GroupHandler>(session, table);
}

}  // namespace torch_remote::server
