#pragma once

#include <string>
#include <vector>

#include <ATen/core/operator_name.h>

namespace torch_remote::server {

// Shared libraries that register operators with PyTorch. Whoever starts the server names them,
// never a client.

// Loads them in order and returns the operators that they add. Only in a session's own process: a
// library may start threads or CUDA, which must not happen in a listener that forks. Throws
// std::invalid_argument with the library and the loader's error.
std::vector<c10::OperatorName> load_libraries(const std::vector<std::string>& paths);

}  // namespace torch_remote::server
