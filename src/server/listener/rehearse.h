#pragma once

#include <functional>

namespace torch_remote::server {

// Runs `attempt` (load libraries, ask CUDA) in a process that then ends, because the listener must
// not do it. So errors that every session would have appear at the start. Throws
// std::invalid_argument with the attempt's error.
void rehearse(const std::function<void()>& attempt);

}  // namespace torch_remote::server
