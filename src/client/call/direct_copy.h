#pragma once

#include <ATen/core/Tensor.h>

namespace torch_remote::client {

// Copies of fewer bytes between two servers go through this process: that takes one round trip, and
// a direct one two.
constexpr uint64_t kDirectCopy = uint64_t{64} << 10;

// Whether copy_directly() is worth a try. May wait for the handshakes.
bool may_copy_directly(const at::Tensor& destination, const at::Tensor& source);

// The bytes of a dense remote tensor into one of another server with the same sizes and strides,
// over a link between the servers: Note [Direct copies] in wire/peers.h. Returns when they are
// there. False: the servers have no link, or it broke; then the destination may be filled in part.
// Raises what relay() raises.
bool copy_directly(const at::Tensor& destination, const at::Tensor& source);

}  // namespace torch_remote::client
