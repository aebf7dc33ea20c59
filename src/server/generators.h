#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Generator.h>

#include "server/devices.h"
#include "wire/messages.h"

namespace torch_remote::server {

// The generators of a session by name. Confined to the executor thread.
//
// The session's device 0 has the process's own default generator, so that a CPU server gives the
// numbers that device="cpu" gives. Operators without a generator argument use the process's
// default: where several devices are simulated on one processor, each has a default generator of
// its own, and the right one is swapped in before such a call.
class Generators {
 public:
  explicit Generators(const Devices& devices);
  ~Generators();  // puts the process's own default generator back
  Generators(const Generators&) = delete;
  Generators& operator=(const Generators&) = delete;

  // Throws ProtocolError for what no client of ours sends; c10::Error for a state that does not
  // fit.
  void apply(const wire::GeneratorMessage& message);
  // By name. Throws ProtocolError when there is none.
  const at::Generator& find(uint64_t name);
  std::vector<std::byte> state(uint64_t name);

  // Keeps its state as it is, once, until put_back() or drop_kept().
  void keep(uint64_t name);
  void put_back();

  void drop_kept() { kept_.clear(); }

  bool has_kept(uint64_t name) const { return kept_.contains(name); }

  // Before a call on `device` that draws from the default generator.
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
  std::vector<at::Generator> defaults_;  // by device; filled at first use
  std::unordered_map<uint64_t, at::Generator> made_;
  std::unordered_map<uint64_t, at::Tensor> kept_;  // states
};

}  // namespace torch_remote::server
