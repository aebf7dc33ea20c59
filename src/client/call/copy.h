#pragma once

#include <ATen/core/Tensor.h>

namespace torch_remote::client {

// Any copy with a remote side: to, from, within a device, between devices of one server; any
// dtypes, broadcast, any strides. With `non_blocking`, a copy to dense pinned memory of the same
// dtype may be pending when this returns (client/session/pending.h).
void copy_tensor(const at::Tensor& destination, const at::Tensor& source, bool non_blocking);

// A remote tensor as a contiguous CPU tensor, conj and neg resolved: one round trip.
at::Tensor download(const at::Tensor& tensor);

// Copies bytes between two addresses, at least one of them remote: for c10::Allocator::copy_data.
void copy_addresses(void* destination, const void* source, size_t count);

}  // namespace torch_remote::client
