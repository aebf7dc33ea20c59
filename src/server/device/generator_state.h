#pragma once

#include <cstddef>
#include <span>

namespace torch_remote::server {

// Whether a CPU generator with this state draws inside its own memory. PyTorch's set_state() does
// not ask: Note [States of a CPU generator].
//
// A state of CUDA's generator is a seed and an offset, which are numbers and no indices: PyTorch
// checks its size, and that the offset is a multiple of 4.
bool is_safe_cpu_state(std::span<const std::byte> state) noexcept;

}  // namespace torch_remote::server
