#pragma once

#include <cstdint>
#include <vector>

#include "wire/codec.h"
#include "wire/dtype.h"

namespace torch_remote::wire {

// A tensor without its storage, for signatures and for READ.
//
//   spec    := dtype:u8 flags:u8 ndim:u8 size:varint* [stride:varint*]
//   flags   := bit 0 contiguous (no strides follow) | bit 1 conj | bit 2 neg | bit 3 wrapped number
struct TensorSpec {
  Dtype dtype = Dtype::kFloat32;
  bool conj = false;
  bool neg = false;
  bool wrapped = false;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  bool operator==(const TensorSpec&) const = default;
};

constexpr uint8_t kSpecContiguous = 1;
constexpr uint8_t kSpecConj = 2;
constexpr uint8_t kSpecNeg = 4;
constexpr uint8_t kSpecWrapped = 8;

void encode(Writer& writer, const TensorSpec& spec);

// Throws ProtocolError on a negative or overflowing size or stride, or an extent over 63 bits.
TensorSpec decode_spec(Reader& reader);

// Bytes from the first element's begin to the last one's end: what the storage must have after the
// offset. 0 without elements. Throws on overflow, as element_count() does.
uint64_t extent_bytes(const TensorSpec& spec);

uint64_t element_count(const TensorSpec& spec);

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes);

}  // namespace torch_remote::wire
