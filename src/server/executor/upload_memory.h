#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "base/mutex.h"

namespace torch_remote::server {

// Limit for memory of earlier uploads that a session keeps for later ones.
constexpr uint64_t kMaxWarmBytes = uint64_t{512} << 20;
// Limit for pinned memory of uploads, in use. What does not fit is received into other memory.
constexpr uint64_t kMaxPinnedBytes = uint64_t{1} << 30;

// Note [Warm blocks]
//
// Receiving into new memory costs a page fault for each page, which takes longer than receiving. So
// the memory of an upload is used again: an upload of a whole storage becomes the storage's memory,
// and the memory that the storage had is kept here for the next upload. A freed storage gives its
// memory if that came from an upload. Memory that kernels allocate stays with PyTorch's allocator.
//
// What is kept counts towards serve --max-memory: it is given up for tensors that need the room.
// Blocks never leave their session, and an upload fills its block before anything can read it.

// Host memory for uploads. Thread-safe: the reader thread allocates, the executor gives back.
class UploadMemory {
 public:
  // `pinned`: for a CUDA server, so that copies to the GPU do not wait.
  explicit UploadMemory(bool pinned) : is_pinned_(pinned) {}

  // Throws what PyTorch's allocator throws.
  c10::Storage allocate(uint64_t nbytes);
  // Keeps the memory, unless something else uses it, it is not like what allocate() returns, or
  // there is no room.
  void give_back(c10::Storage memory);

  // How much may be kept, besides kMaxWarmBytes.
  void set_room(uint64_t bytes);

  void empty() { shrink(0); }

  uint64_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Block {
    c10::DataPtr memory;
    uint64_t nbytes = 0;
  };

  Block take(uint64_t nbytes);
  c10::Storage allocate_pinned(uint64_t nbytes);
  void shrink(uint64_t bytes);

  const bool is_pinned_;
  std::atomic<uint64_t> kept_bytes_{0};  // changes under mutex_
  std::atomic<uint64_t> room_{kMaxWarmBytes};
  Mutex mutex_;
  std::deque<Block> blocks_ GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace torch_remote::server
