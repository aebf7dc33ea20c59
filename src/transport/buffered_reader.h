#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "transport/stream.h"

namespace torch_remote::transport {

// Reads up to 64 KiB ahead, to save system calls on small frames; large reads go straight to the
// caller's buffer. Confined to one thread.
class BufferedReader {
 public:
  // `on_bytes` is called after every successful read.
  BufferedReader(Stream& stream, std::function<void(size_t)> on_bytes);

  // Fills `into`. False: the stream ended before the first byte. Throws ConnectionError when it
  // ends later.
  bool read_or_end(std::span<std::byte> into);
  // Fills `into`. Throws ConnectionError when the stream ends first.
  void read(std::span<std::byte> into);

 private:
  size_t read_some(std::span<std::byte> into);

  Stream& stream_;
  const std::function<void(size_t)> on_bytes_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> ahead_;  // the part of buffer_ that is read but not yet taken
};

}  // namespace torch_remote::transport
