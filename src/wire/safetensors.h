#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "wire/files.h"

namespace torch_remote::wire {

// What a file says is wrong, or more than is read. A sentence without the file's name.
class FileContentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Note [Files of safetensors]
//
//   file    := length:u64 header data               length: of the header, in bytes
//   header  := { name: {"dtype": text, "shape": [size …], "data_offsets": [begin, end]}, …
//                "__metadata__": {text: text, …} }  JSON; white space may follow
//
// begin and end count from the first byte of the data. The tensors are beside each other: they
// leave out no byte of the data and share none.
//
// A file may be a stranger's. All numbers are checked against each other and against the file's
// length before one is used; names are UTF-8 without control characters.
inline constexpr uint64_t kFileHeadBytes = 8;  // what a file begins with

// The length of the header. `head`: the file's first kFileHeadBytes, or fewer if it has fewer.
// Throws FileContentError; for files of torch.save it says how to convert them.
uint64_t header_length(std::span<const std::byte> head, uint64_t file_length);
// The tensors, in their order in the file. Throws FileContentError.
std::vector<FileTensor> parse_tensors(std::string_view header, uint64_t file_length);

struct CheckpointIndex {
  std::vector<std::string> shards;  // names of files, which may be anything that a name can be
  std::vector<IndexEntry> entries;
};

// Of an index: {"metadata": …, "weight_map": {name: file, …}}. Throws FileContentError.
CheckpointIndex parse_index(std::string_view text);

}  // namespace torch_remote::wire
