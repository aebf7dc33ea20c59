// The state of a CPU generator: what is accepted draws inside its own memory, where the address
// sanitizer sees it.
//
//   input := the bytes that differ from a generator's state: (place:u16 value:u8)*
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "server/executor/generators.h"

namespace torch_remote::fuzz {
namespace {

constexpr int kDraws = 2 * at::MERSENNE_STATE_N + 2;

void draw(const at::Tensor& state) {
  const auto generator = c10::make_intrusive<at::CPUGeneratorImpl>();
  generator->set_state(*state.unsafeGetTensorImpl());
  const auto engine = std::make_unique<at::mt19937>(generator->engine());  // alone on the heap
  for (int i = 0; i < kDraws; ++i) {
    const at::mt19937_data_pod now = engine->data();
    if (now.left_ != 1 && now.next_ >= at::MERSENNE_STATE_N)
      std::abort();
    (*engine)();
  }
}

}  // namespace
}  // namespace torch_remote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const at::Tensor state = at::detail::createCPUGenerator(7).get_state();
  auto* const bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  for (; size >= 3; data += 3, size -= 3)
    bytes[(data[0] | data[1] << 8) % state.numel()] = data[2];
  const std::span<const std::byte> whole(reinterpret_cast<const std::byte*>(bytes), state.nbytes());
  if (torch_remote::server::is_safe_cpu_state(whole))
    torch_remote::fuzz::draw(state);
  return 0;
}
