#pragma once

#include <string>
#include <vector>

#include "client/link/endpoint.h"

namespace torch_remote::client {

// The server that `local` starts: a child of this process, over a socket pair. `path` is its
// program; it gets these options. The child is started when the session opens. On macOS there is no
// server yet, and opening throws ConnectionError.
Endpoint embedded_server(const std::string& path, std::vector<std::string> options);

}  // namespace torch_remote::client
