#pragma once

#include <ATen/core/Tensor.h>

namespace torch_remote::client {

// Copies of at most this size between two servers are one download and one upload.
constexpr uint64_t kRelayPiece = uint64_t{8} << 20;

// The bytes of a dense remote tensor into one of another server with the same sizes and strides.
// They pass through this process in pieces: later ones are read while earlier ones are sent, and no
// more than kRelayPieces of them are here at a time. Returns when the last piece is on its way.
//
// If it raises (a server is lost, the value was never made, Ctrl-C), the destination may be filled
// in part.
void relay(const at::Tensor& destination, const at::Tensor& source);

}  // namespace torch_remote::client
