#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "base/mutex.h"

namespace torch_remote::client {

// Downloads of at least this size are received into kept memory. malloc keeps smaller blocks.
constexpr size_t kSmallestKept = size_t{1} << 20;
// Limit for memory of freed downloads that is kept.
constexpr uint64_t kMaxKeptBytes = uint64_t{512} << 20;

// Note [Kept downloads]
//
// Receiving into new memory costs a page fault for each page, which takes longer than receiving. So
// the memory of a large CPU tensor that a download has made is kept when the tensor is freed, and
// the next download of about that size is received into it. The tensor is an ordinary one: its
// memory is that of PyTorch's allocator, and only its deleter is ours.

// Memory for downloads, and what is kept of it. Thread-safe. Leaks: tensors may outlive it.
class DownloadMemory {
 public:
  static DownloadMemory& instance();

  // Throws what PyTorch's allocator throws.
  c10::DataPtr allocate(size_t nbytes);

  // Frees what is kept: torch.remote.empty_cache().
  void empty();

  uint64_t kept_bytes();

 private:
  struct Block {
    void* memory = nullptr;
    size_t nbytes = 0;
  };

  static void give_back(void* memory);
  // A kept block that is large enough and not much too large; else an empty one.
  Block take(size_t nbytes);
  Block make(size_t nbytes);
  void keep(void* memory);
  void shrink(uint64_t bytes);

  Mutex mutex_;
  std::unordered_map<void*, size_t> used_ GUARDED_BY(mutex_);  // sizes by address
  std::deque<Block> kept_ GUARDED_BY(mutex_);                  // the oldest first
  uint64_t kept_bytes_ GUARDED_BY(mutex_) = 0;
};

// A CPU tensor for a download, whose memory is not filled. Strides must be dense.
at::Tensor empty_for_download(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              at::ScalarType dtype);

}  // namespace torch_remote::client
