#include "server/operators/generator_copy.h"

#include <ATen/core/Generator.h>
#include <torch/library.h>

#include "marshal/generator_copy.h"

namespace torch_remote::server {
namespace {

void copy_generator(at::Generator to, const at::Generator& source) {
  to.set_state(source.get_state());
}

// For every device: the dispatcher finds none in a call without tensors. A client in the same
// process has a kernel of its own device.
bool implement() {
  marshal::define_generator_copy();
  auto& library =
      *new torch::Library(torch::Library::IMPL, "torch_remote",
                          c10::DispatchKey::CompositeExplicitAutograd, __FILE__, __LINE__);
  library.impl("copy_generator", copy_generator);
  return true;
}

}  // namespace

c10::OperatorName register_generator_copy() {
  [[maybe_unused]] static const bool kIsDone = implement();
  return {marshal::kCopyGenerator, ""};
}

}  // namespace torch_remote::server
