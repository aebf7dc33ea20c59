#include "server/handlers/interpreter.h"

#include <ctime>
#include <string>

#include "server/executor/failures.h"
#include "server/groups/groups.h"
#include "server/handlers/all_handlers.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr uint64_t kBetweenReports = 250;  // ms

// Costs a few nanoseconds, and is some milliseconds late.
uint64_t now_ms() {
#ifdef CLOCK_MONOTONIC_COARSE
  constexpr clockid_t kClock = CLOCK_MONOTONIC_COARSE;
#else
  constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif
  timespec now{};
  ::clock_gettime(kClock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

}  // namespace

Interpreter::Interpreter(const Devices& devices, const OperatorTable& operators, Uploads& uploads,
                         Replies& replies, InterpreterOptions options)
    : state_(devices, operators, uploads, replies, std::move(options)) {
  table_.add<&Interpreter::on_query>(wire::Tag::kQuery, *this);
  table_.add<&Interpreter::on_cancel>(wire::Tag::kCancel, *this);
  for (MakeHandler* const make : kMakeHandlers)
    handlers_.push_back(make(state_, table_));
  table_.check_queries();
}

void Interpreter::apply(std::span<const std::byte> payload) {
  wire::Reader reader(payload);
  state_.names = {};
  told_at_ = now_ms();
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
      tell_progress();
    }
  } catch (DeviceLost& lost) {
    state_.executor.locate(lost.error);
    throw;
  }
  state_.executor.drop_storages();
}

void Interpreter::tell_progress() {
  const uint64_t now = now_ms();
  if (C10_LIKELY(now - told_at_ < kBetweenReports))
    return;
  told_at_ = now;
  state_.replies.progress(state_.executor.number());
}

void Interpreter::on_cancel(wire::Reader& reader) {
  static_cast<void>(wire::decode_cancel(reader));
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
