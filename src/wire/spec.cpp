#include "wire/spec.h"

#include <algorithm>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

uint64_t checked_multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > INT64_MAX)
    throw ProtocolError("a tensor's extent does not fit 63 bits");
  return product;
}

uint64_t checked_add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > INT64_MAX)
    throw ProtocolError("a tensor's extent does not fit 63 bits");
  return sum;
}

int64_t extent_number(Reader& reader) {
  const uint64_t value = reader.varint();
  if (value > INT64_MAX)
    throw ProtocolError("a size or stride is negative");
  return static_cast<int64_t>(value);
}

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

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  uint64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(step);
    step = checked_multiply(step, static_cast<uint64_t>(std::max<int64_t>(sizes[i], 1)));
  }
  return strides;
}

void encode(Writer& writer, const TensorSpec& spec) {
  const bool contiguous = spec.strides == contiguous_strides(spec.sizes);
  writer.u8(static_cast<uint8_t>(spec.dtype));
  writer.u8(static_cast<uint8_t>((contiguous ? kSpecContiguous : 0) | (spec.conj ? kSpecConj : 0) |
                                 (spec.neg ? kSpecNeg : 0) | (spec.wrapped ? kSpecWrapped : 0)));
  writer.u8(static_cast<uint8_t>(spec.sizes.size()));
  for (const int64_t size : spec.sizes)
    writer.varint(static_cast<uint64_t>(size));
  if (contiguous)
    return;
  for (const int64_t stride : spec.strides)
    writer.varint(static_cast<uint64_t>(stride));
}

TensorSpec decode_spec(Reader& reader) {
  TensorSpec spec;
  spec.dtype = checked_dtype(reader.u8());
  const uint8_t flags = reader.u8();
  if (flags > 15)
    throw ProtocolError("a tensor has unknown flags");
  spec.conj = flags & kSpecConj;
  spec.neg = flags & kSpecNeg;
  spec.wrapped = flags & kSpecWrapped;
  const uint8_t ndim = reader.u8();
  check_limit("dimensions of a tensor", ndim, kMaxDimensions);
  spec.sizes.resize(ndim);
  for (int64_t& size : spec.sizes)
    size = extent_number(reader);
  if (flags & kSpecContiguous) {
    spec.strides = contiguous_strides(spec.sizes);
  } else {
    spec.strides.resize(ndim);
    for (int64_t& stride : spec.strides)
      stride = extent_number(reader);
  }
  element_count(spec);
  extent_bytes(spec);
  return spec;
}

uint64_t element_count(const TensorSpec& spec) {
  if (std::find(spec.sizes.begin(), spec.sizes.end(), 0) != spec.sizes.end())
    return 0;
  uint64_t count = 1;
  for (const int64_t size : spec.sizes)
    count = checked_multiply(count, static_cast<uint64_t>(size));
  return count;
}

uint64_t extent_bytes(const TensorSpec& spec) {
  uint64_t last = 0;
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.sizes[i] == 0)
      return 0;
    last = checked_add(last, checked_multiply(static_cast<uint64_t>(spec.sizes[i] - 1),
                                              static_cast<uint64_t>(spec.strides[i])));
  }
  return checked_multiply(checked_add(last, 1), element_bytes(spec.dtype));
}

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
