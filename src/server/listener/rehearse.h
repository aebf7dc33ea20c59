#pragma once

#include <functional>

namespace torch_remote::server {

// Does in a process that ends again what every session will do (load libraries, ask CUDA), so that a listener can say
// at its start what would fail each time: it may do none of that itself. Throws std::invalid_argument with the
// attempt's words.
void rehearse(const std::function<void()>& attempt);

}  // namespace torch_remote::server
