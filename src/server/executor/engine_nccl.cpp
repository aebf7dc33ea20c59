#include "server/executor/engine.h"

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

namespace torch_remote::server {

c10::intrusive_ptr<c10d::Backend> make_nccl([[maybe_unused]] const EngineOptions& options) {
#ifdef USE_C10D_NCCL
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
