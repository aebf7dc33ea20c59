#pragma once

#include "wire/messages.h"

namespace torch_remote::server {

// The most threads that a client gets, however many it says: twice the cores of this machine, and
// 16 on a small one. Kernels split sums over as many threads as the client has, so that results are
// bit for bit those of the client's CPU, but the threads are the server's to give.
int most_threads();

// Sets the settings in this process. Logs and skips what this build of torch does not have, such as
// a CUDA backend on a CPU build. Executor thread.
void apply_context(const wire::Context& context);
wire::Context present_context();

}  // namespace torch_remote::server
