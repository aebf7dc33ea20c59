#include <sys/socket.h>

#include "base/fd.h"
#include "server/groups/engine.h"

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

namespace torch_remote::server {

c10::intrusive_ptr<c10d::Backend> make_nccl([[maybe_unused]] const EngineOptions& options) {
#ifdef USE_C10D_NCCL
  const Fd made(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // as NCCL does
  TORCH_CHECK_NOT_IMPLEMENTED(
      made,
      "NCCL needs Unix sockets, which the sandbox refuses: start the server "
      "with --sandbox off, an embedded one with TORCH_REMOTE_SANDBOX=off");
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  auto engine = c10::make_intrusive<c10d::ProcessGroupNCCL>(options.store, options.rank,
                                                            options.size, std::move(nccl));
  engine->setBoundDeviceId(options.device);
  engine->eagerConnectSingleDevice(options.device);  // while the client brings values of the store
  return engine;
#else
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "this server was built without NCCL: build it on a machine that has nccl.h and CUDA's "
      "headers");
#endif
}

}  // namespace torch_remote::server
