#include "server/handlers/session_state.h"

#include "server/executor/failures.h"
#include "server/groups/groups.h"
#include "wire/streams.h"

namespace torch_remote::server {

SessionState::SessionState(const Devices& devices, const OperatorTable& operators, Uploads& uploads,
                           Replies& replies, InterpreterOptions given)
    : devices(devices),
      operators(operators),
      uploads(uploads),
      replies(replies),
      options(std::move(given)),
      device_reads(replies,
                   [&replies](uint64_t request, std::exception_ptr failure) {
                     answer_done(replies, request)(std::move(failure));
                   }),
      streams(devices),
      storages(uploads, streams, {.bytes = options.max_memory, .others = counted}),
      generators(devices),
      threads(replies, counted),
      profile(devices, streams),
      executor(devices, storages, generators, threads, profile, options.call_log),
      groups(std::make_unique<Groups>(devices, replies, options.peers.has_value())),
      plans(devices, operators, options.call_log) {}

SessionState::~SessionState() = default;

wire::Counters SessionState::counters() {
  const StorageTotals totals = storages.account().totals();
  return {executor.calls(), executor.mispredicted(), totals.storages, totals.bytes};
}

bool SessionState::finish_work(uint64_t request) {
  if (options.call_log != nullptr)
    options.call_log->flush();
  try {
    for (unsigned i = 0; i < devices.count(); ++i)
      devices.synchronize(static_cast<uint8_t>(i));
  } catch (...) {
    answer_failure(replies, request, std::current_exception(), "synchronize");
    return false;
  }
  executor.note_good();
  return true;
}

void answer_failure(Replies& replies, uint64_t request, std::exception_ptr cause,
                    const char* what) {
  replies.error(request, describe_failure(std::move(cause), what));
}

Streams::OnDone answer_done(Replies& replies, uint64_t request) {
  return [&replies, request](std::exception_ptr failure) {
    if (failure == nullptr)
      return replies.reply(request, wire::done_answer(true));
    try {
      answer_failure(replies, request, failure, "synchronize");
    } catch (const DeviceLost& lost) {
      replies.error(request, lost.error);  // the executor finds it too, and ends the session
    }
  };
}

}  // namespace torch_remote::server
