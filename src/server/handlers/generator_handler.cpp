// GENERATOR, and what state a generator has.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"

namespace torch_remote::server {
namespace {

class GeneratorHandler : public Handler {
 public:
  GeneratorHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&GeneratorHandler::on_generator>(wire::Tag::kGenerator, *this);
    table.add<&GeneratorHandler::query_generator>(wire::QueryKind::kGenerator, *this);
  }

 private:
  void on_generator(wire::Reader& reader);
  void query_generator(uint64_t request, wire::Reader& reader);
  // The message is one of a stopped thread.
  bool is_discarded(const wire::GeneratorMessage& message) const;

  SessionState& session_;
};

bool GeneratorHandler::is_discarded(const wire::GeneratorMessage& message) const {
  const bool is_made_or_freed = message.action == wire::GeneratorAction::kMake ||
                                message.action == wire::GeneratorAction::kFree;
  const StoppedThreads& threads = session_.threads;
  return threads.cause() != nullptr && !is_made_or_freed &&
         !threads.is_made_since(session_.generators.made(message.name));
}

void GeneratorHandler::on_generator(wire::Reader& reader) {
  const wire::GeneratorMessage message = wire::decode_generator(reader);
  if (is_discarded(message))
    return;
  try {
    session_.generators.apply(message,
                              {session_.threads.current(), session_.executor.number() + 1});
  } catch (...) {
    answer_failure(session_.replies, 0, std::current_exception(), "generator");
  }
}

void GeneratorHandler::query_generator(uint64_t request, wire::Reader& reader) {
  const uint64_t name = wire::decode_generator_query(reader);
  if (session_.threads.cause() != nullptr)
    return session_.replies.error(request, *session_.threads.cause());
  try {
    session_.replies.reply(request, session_.generators.state(name));
  } catch (...) {
    answer_failure(session_.replies, request, std::current_exception(), "generator");
  }
}

}  // namespace

std::unique_ptr<Handler> make_generator_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<GeneratorHandler>(session, table);
}

}  // namespace torch_remote::server
