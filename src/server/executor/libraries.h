#pragma once

#include <string>
#include <vector>

#include <ATen/core/operator_name.h>

namespace torch_remote::server {

// Other libraries' operators: shared libraries that register some with PyTorch, named by who starts the server and
// never by a client.

// Loads them in order and gives the operators that came with them. Only in a session's own process: what a library
// does when it is loaded (threads, kernels, CUDA) must not happen in a listener, which forks. Throws
// std::invalid_argument with the library and the loader's words.
std::vector<c10::OperatorName> load_libraries(const std::vector<std::string>& paths);

}  // namespace torch_remote::server
