#include "server/handlers/interpreter.h"

#include <string>

#include "server/executor/errors.h"
#include "server/groups/groups.h"
#include "server/handlers/all_handlers.h"
#include "wire/limits.h"

namespace torch_remote::server {

Interpreter::Interpreter(const Devices& devices, const OperatorTable& operators, Uploads& uploads,
                         Replies& replies, InterpreterOptions options)
    : state_(devices, operators, uploads, replies, std::move(options)) {
  table_.add<&Interpreter::on_query>(wire::Tag::kQuery, *this);
  for (MakeHandler* const make : kMakeHandlers)
    handlers_.push_back(make(state_, table_));
  table_.check_queries();
}

void Interpreter::apply(std::span<const std::byte> payload) {
  wire::Reader reader(payload);
  state_.names = {};
  const Groups::Scope groups(*state_.groups);
  try {
    while (!reader.empty()) {
      wire::ReceivedMessage message = wire::next_message(reader);
      const HandlerTable::OnMessage& handle = table_.find(message.tag);
      if (C10_UNLIKELY(!handle)) {
        skip(message.tag);
        continue;
      }
      handle(message.body);
      message.body.finish();
    }
  } catch (DeviceLost& lost) {
    state_.executor.locate(lost.error);
    throw;
  }
  state_.executor.drop_storages();
}

void Interpreter::close_links() {
  for (const std::unique_ptr<Handler>& handler : handlers_)
    handler->close();
}

void Interpreter::on_query(wire::Reader& reader) {
  const wire::Query query = wire::decode_query(reader);
  ++state_.answers;
  table_.find(query.kind)(query.request, reader);
}

void Interpreter::skip(wire::Tag tag) {
  wire::check_limit("messages of an unknown kind", ++skipped_, wire::kMaxSkippedTags);
  const std::string name = wire::to_text(tag);
  wire::Error error;
  error.kind = wire::ErrorKind::kRefused;
  error.operator_name =
      name == "unknown" ? "message " + std::to_string(static_cast<int>(tag)) : name;
  error.message = "this server does not know this kind of message, and has skipped it";
  state_.replies.error(0, error);
}

}  // namespace torch_remote::server
