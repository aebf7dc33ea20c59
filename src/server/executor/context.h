#pragma once

#include "wire/messages.h"

namespace torch_remote::server {

// Makes the settings those of this process. A setting that this build of torch cannot have (a CUDA
// backend on a CPU build) is logged and left as it is. Executor thread.
void apply_context(const wire::Context& context);
// Every setting as it is now. Executor thread.
wire::Context present_context();

}  // namespace torch_remote::server
