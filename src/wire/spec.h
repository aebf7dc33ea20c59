#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "wire/codec.h"

namespace torch_remote::wire {

// Our own numbers: PyTorch's may differ between the client's and the server's version.
enum class Dtype : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kComplex32 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBfloat16 = 12,
  kUint16 = 13,
  kUint32 = 14,
  kUint64 = 15,
  kFloat8E5M2 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E5M2FNUZ = 18,
  kFloat8E4M3FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kFloat4E2M1FNX2 = 21,
};

constexpr uint8_t kDtypeCount = 22;

constexpr std::array<uint8_t, kDtypeCount> kDtypeBytes = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16,
                                                          1, 2, 2, 4, 8, 1, 1, 1, 1, 1, 1};

inline uint64_t element_bytes(Dtype dtype) {
  return kDtypeBytes[static_cast<uint8_t>(dtype)];
}

inline Dtype checked_dtype(uint8_t value) {
  if (value >= kDtypeCount)
    throw ProtocolError("no dtype " + std::to_string(value));
  return static_cast<Dtype>(value);
}

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

enum class Layout : uint8_t {
  kStrided = 0,
  kSparseCoo = 1,
  kSparseCsr = 2,
  kSparseCsc = 3,
  kSparseBsr = 4,
  kSparseBsc = 5,
};

// Throws ProtocolError for an unknown layout.
Layout checked_layout(uint8_t layout);

// A sparse tensor without its parts. The parts are strided tensors, which follow it: for COO the
// indices and the values; for the others the compressed indices, the plain indices and the values.
//
//   sparse  := layout:u8 flags:u8 ndim:u8 size:varint*ndim
//   flags   := bit 0 coalesced (COO only)
struct SparseSpec {
  Layout layout = Layout::kSparseCoo;
  bool is_coalesced = false;
  std::vector<int64_t> sizes;

  bool operator==(const SparseSpec&) const = default;
};

size_t part_count(Layout layout);

void encode(Writer& writer, const SparseSpec& spec);

// Throws ProtocolError: a strided layout, an unknown flag, more elements than 63 bits count.
SparseSpec decode_sparse_spec(Reader& reader);

}  // namespace torch_remote::wire
