#include "wire/layout.h"

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

constexpr uint8_t kCoalesced = 1;

// PyTorch counts the elements of a sparse tensor in 63 bits too, the zeros included.
void check_elements(const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes)
    if (size == 0)
      return;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(elements, size, &elements))
      throw ProtocolError("the elements of a sparse tensor do not fit 63 bits");
}

}  // namespace

Layout checked_layout(uint8_t layout) {
  if (layout > static_cast<uint8_t>(Layout::kSparseBsc))
    throw ProtocolError("no layout " + std::to_string(layout));
  return static_cast<Layout>(layout);
}

size_t part_count(Layout layout) {
  return layout == Layout::kSparseCoo ? 2 : 3;
}

void encode(Writer& writer, const SparseSpec& spec) {
  writer.u8(static_cast<uint8_t>(spec.layout));
  writer.u8(spec.is_coalesced ? kCoalesced : 0);
  writer.u8(static_cast<uint8_t>(spec.sizes.size()));
  for (const int64_t size : spec.sizes)
    writer.varint(static_cast<uint64_t>(size));
}

SparseSpec decode_sparse_spec(Reader& reader) {
  SparseSpec spec;
  spec.layout = checked_layout(reader.u8());
  if (spec.layout == Layout::kStrided)
    throw ProtocolError("a sparse tensor has the strided layout");
  const uint8_t flags = reader.u8();
  if (flags > (spec.layout == Layout::kSparseCoo ? kCoalesced : 0))
    throw ProtocolError("a sparse tensor has an unknown flag");
  spec.is_coalesced = flags != 0;
  const uint8_t dimensions = reader.u8();
  check_limit("dimensions of a tensor", dimensions, kMaxDimensions);
  for (uint8_t i = 0; i < dimensions; ++i)
    spec.sizes.push_back(static_cast<int64_t>(reader.count(INT64_MAX, "size of a sparse tensor")));
  check_elements(spec.sizes);
  return spec;
}

}  // namespace torch_remote::wire
