#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Generator.h>

#include "base/hash.h"
#include "server/device/devices.h"
#include "server/executor/failures.h"
#include "wire/messages.h"

namespace torch_remote::server {

// The generators of a session by name. Confined to the executor thread.
//
// The session's device 0 uses the process's default generator, so that a CPU server gives the same
// numbers as device="cpu". Simulated CPU devices have default generators of their own. An operator
// without a generator argument uses the process's, so the device's is swapped in before the call.
class Generators {
 public:
  explicit Generators(const Devices& devices);
  ~Generators();  // restores the process's default generator
  Generators(const Generators&) = delete;
  Generators& operator=(const Generators&) = delete;

  // Throws ProtocolError for what no client of ours sends; c10::Error for a state that does not
  // fit.
  // `here`: this message.
  void apply(const wire::GeneratorMessage& message, Origin here);
  // The message that has made it. A device's own generator was made by none.
  Origin made(uint64_t name) const;
  // By name. Throws ProtocolError when there is none.
  const at::Generator& find(uint64_t name);
  std::vector<std::byte> state(uint64_t name);

  // Call before an operator on `device` draws from the default generator.
  void use_default_of(uint8_t device) {
    if (device != current_ && is_swapping_)
      swap_in(device);
  }

 private:
  at::Generator make(uint8_t device) const;
  void swap_in(uint8_t device);

  const Devices& devices_;
  const bool is_swapping_;
  uint8_t current_ = 0;
  std::vector<at::Generator> defaults_;  // by device; made at first use

  struct Made {
    at::Generator generator;
    Origin origin;
  };

  std::unordered_map<uint64_t, Made, NameHash> made_;
};

// Whether a CPU generator with this state draws inside its own memory. PyTorch's set_state() does
// not ask: Note [States of a CPU generator].
//
// A state of CUDA's generator is a seed and an offset, which are numbers and no indices: PyTorch
// checks its size, and that the offset is a multiple of 4.
bool is_safe_cpu_state(std::span<const std::byte> state) noexcept;

}  // namespace torch_remote::server
