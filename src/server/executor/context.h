#pragma once

#include "wire/messages.h"

namespace torch_remote::server {

// Sets the settings in this process. Logs and skips what this build of torch does not have, such as
// a CUDA backend on a CPU build. Executor thread.
void apply_context(const wire::Context& context);
wire::Context present_context();

}  // namespace torch_remote::server
