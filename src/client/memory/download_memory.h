#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "base/block_pool.h"

namespace torch_remote::client {

// Downloads of at least this size are received into kept memory.
constexpr size_t kSmallestKept = BlockPool::kSmallest;
// Limit for memory of freed downloads that is kept.
constexpr uint64_t kMaxKeptBytes = uint64_t{512} << 20;

// Note [Kept downloads]
//
// The memory of a large CPU tensor that a download has made is kept when the tensor is freed, and
// the next download of about that size is received into it (base/block_pool.h says why). The tensor
// is an ordinary one: its memory is that of PyTorch's allocator, and only its deleter is ours.

// Memory for downloads, and what is kept of it. Thread-safe. Leaks: tensors may outlive it.
class DownloadMemory {
 public:
  static DownloadMemory& instance();

  // Throws what PyTorch's allocator throws.
  c10::DataPtr allocate(size_t nbytes);

  // Frees what is kept: torch.remote.empty_cache().
  void empty();

  uint64_t kept_bytes() const { return pool_.kept_bytes(); }

 private:
  DownloadMemory();

  static void give_back(void* memory);

  BlockPool pool_;
};

// A CPU tensor for a download, whose memory is not filled. Strides must be dense.
at::Tensor empty_for_download(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              at::ScalarType dtype);

}  // namespace torch_remote::client
