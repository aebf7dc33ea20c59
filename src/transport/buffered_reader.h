#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "transport/stream.h"

namespace torch_remote::transport {

// Reads ahead into 64 KiB, so that small frames do not cost two system calls each; large reads go
// straight to where they are wanted. Confined to one thread.
class BufferedReader {
 public:
  // `on_bytes` is told of every successful read.
  BufferedReader(Stream& stream, std::function<void(size_t)> on_bytes);

  // Fills `into`. False: the stream ended before its first byte. Throws ConnectionError when it
  // ends later.
  bool read_or_end(std::span<std::byte> into);
  // Fills `into`; the stream must not end.
  void read(std::span<std::byte> into);

 private:
  size_t read_some(std::span<std::byte> into);

  Stream& stream_;
  const std::function<void(size_t)> on_bytes_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> ahead_;  // the part of buffer_ that was read and not yet taken
};

}  // namespace torch_remote::transport
