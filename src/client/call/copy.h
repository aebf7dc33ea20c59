#pragma once

#include <ATen/core/Tensor.h>

namespace torch_remote::client {

// Any copy in which at least one side is remote: to, from, within a device, between devices of one server; any
// dtype pair, broadcast, any strides. With `non_blocking` a copy to dense pinned memory of the same
// dtype is pending when this returns (client/session/pending.h).
void copy_tensor(const at::Tensor& destination, const at::Tensor& source, bool non_blocking);

// The elements of a remote tensor, contiguous, conj and neg resolved, in a new CPU tensor: one round trip.
at::Tensor download(const at::Tensor& tensor);

// Bytes between two remote addresses, or a remote and a host address: for c10::Allocator::copy_data.
void copy_addresses(void* destination, const void* source, size_t count);

}  // namespace torch_remote::client
