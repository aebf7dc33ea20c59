#include "server/handlers/answers.h"

#include "server/executor/errors.h"
#include "wire/streams.h"

namespace torch_remote::server {

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
