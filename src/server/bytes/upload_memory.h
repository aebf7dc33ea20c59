#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "base/block_pool.h"

namespace torch_remote::server {

// Limit for memory of earlier uploads that a session keeps for later ones.
constexpr uint64_t kMaxWarmBytes = uint64_t{512} << 20;
// Limit for pinned memory of uploads, in use. What does not fit is received into other memory.
constexpr uint64_t kMaxPinnedBytes = uint64_t{1} << 30;

// Note [Warm blocks]
//
// The memory of an upload is used again (base/block_pool.h says why): an upload of a whole storage
// becomes the storage's memory, and what the storage had goes to the next upload, if it came from
// an upload itself. So does the memory of a freed storage. Memory that kernels allocate stays with
// PyTorch's allocator.
//
// What is kept counts towards serve --max-memory: it is given up for tensors that need the room.
// Blocks never leave their session, and an upload fills its block before anything can read it.

// Host memory for uploads. Thread-safe: the reader thread allocates, any thread may be the last to
// use a block.
class UploadMemory {
 public:
  // `pinned`: for a CUDA server, so that copies to the GPU do not wait.
  explicit UploadMemory(bool pinned);

  // Throws what PyTorch's allocator throws. When nothing uses the memory any more, it is kept.
  c10::Storage allocate(uint64_t nbytes);
  // The size of the memory behind a storage: a block that is used again may be larger.
  static uint64_t bytes_behind(const c10::Storage& storage);

  // How much may be kept, besides kMaxWarmBytes.
  void set_room(uint64_t bytes) { pool_->set_room(bytes); }

  void empty() { pool_->empty(); }

  uint64_t kept_bytes() const { return pool_->kept_bytes(); }

 private:
  static void give_back(void* memory);
  c10::Storage allocate_pinned(uint64_t nbytes);

  const bool is_pinned_;
  const std::shared_ptr<BlockPool> pool_;  // blocks that are used own it too
};

}  // namespace torch_remote::server
