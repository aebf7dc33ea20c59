#include "base/error.h"
#include "client/link/open.h"

namespace torch_remote::client {

Endpoint embedded_server(const std::string& /*path*/, std::vector<std::string> /*options*/) {
  Endpoint endpoint;
  endpoint.url = "local";
  endpoint.open = []() -> std::unique_ptr<transport::Stream> {
    throw ConnectionError(
        "torch-remote has no server for macOS yet: set TORCH_REMOTE to a machine with one, for "
        "example ssh://gpu-box");
  };
  return endpoint;
}

}  // namespace torch_remote::client
