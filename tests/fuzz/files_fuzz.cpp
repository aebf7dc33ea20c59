// Any bytes as a file of safetensors, or as the index of a checkpoint: read or refused, never
// anything else; what was read is inside the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "wire/limits.h"
#include "wire/safetensors.h"

namespace {

using namespace torch_remote::wire;  // NOLINT
using Bytes = std::span<const std::byte>;

void require(bool holds) {
  if (!holds)
    std::abort();
}

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The tensors are beside each other from the header to the end.
void fuzz_tensors(Bytes file) {
  const Bytes head = file.first(std::min<size_t>(file.size(), kFileHeadBytes));
  const uint64_t length = header_length(head, file.size());
  uint64_t end = kFileHeadBytes + length;
  for (const FileTensor& tensor :
       parse_tensors(text_of(file.subspan(head.size(), length)), file.size())) {
    require(tensor.begin == end && tensor.name.size() <= kMaxFileName);
    require(tensor.spec.sizes.size() <= kMaxDimensions);
    end += extent_bytes(tensor.spec);
  }
  require(end == file.size());
}

// The header of a file whose length is the first two bytes.
void fuzz_header(Bytes bytes) {
  if (bytes.size() < 2)
    return;
  const uint64_t length =
      std::to_integer<uint64_t>(bytes[0]) + (std::to_integer<uint64_t>(bytes[1]) << 8);
  for (const FileTensor& tensor : parse_tensors(text_of(bytes.subspan(2)), length))
    require(tensor.begin <= length && extent_bytes(tensor.spec) <= length - tensor.begin);
}

void fuzz_index(Bytes bytes) {
  const CheckpointIndex index = parse_index(text_of(bytes));
  for (const IndexEntry& entry : index.entries)
    require(entry.shard < index.shards.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const Bytes bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0)
      fuzz_tensors(bytes);
    else if (data[0] % 3 == 1)
      fuzz_header(bytes);
    else
      fuzz_index(bytes);
  } catch (const FileContentError&) {
    // Refused.
  }
  return 0;
}
