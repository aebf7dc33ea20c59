#include "server/groups/engine.h"

#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#else
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

namespace torch_remote::server {

bool has_gloo() noexcept {
#ifdef USE_C10D_GLOO
  return true;
#else
  return false;
#endif
}

c10::intrusive_ptr<c10d::Backend> make_gloo([[maybe_unused]] const EngineOptions& options) {
#ifdef USE_C10D_GLOO
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(options.address)};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(options.store, options.rank, options.size,
                                                     std::move(gloo));
#else
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "this server was built without Gloo: build it on a machine that has "
                              "the headers <gloo/...> (Debian: libgloo-dev)");
#endif
}

}  // namespace torch_remote::server
