#pragma once

#include <cstdint>
#include <exception>

#include "server/bytes/reply.h"
#include "server/device/streams.h"
#include "wire/codec.h"

// Answers that several handlers give.
namespace torch_remote::server {

// Replies with what `write(writer)` writes.
template <typename Write>
void answer_with(Replies& replies, uint64_t request, Write&& write) {
  wire::Writer body;
  write(body);
  replies.reply(request, body.view());
}

// Answers with an error that stops no thread. Throws what ends the session.
void answer_failure(Replies& replies, uint64_t request, std::exception_ptr cause, const char* what);

// Answers the request when a stream or event is done, on the thread that finds it done.
Streams::OnDone answer_done(Replies& replies, uint64_t request);

}  // namespace torch_remote::server
