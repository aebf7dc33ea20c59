#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire/codec.h"

namespace torch_remote::wire {

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
