#include "server/executor/upload_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "base/platform.h"

namespace torch_remote::server {
namespace {

// malloc keeps smaller blocks by itself.
constexpr uint64_t kSmallestWarm = uint64_t{1} << 20;

c10::Storage storage_over(c10::DataPtr memory, uint64_t nbytes) {
  return {c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes), std::move(memory),
          c10::GetCPUAllocator(), true};
}

bool is_plain_memory(const c10::DataPtr& memory) {
  const c10::DeleterFnPtr deleter = c10::GetCPUAllocator()->raw_deleter();
  return deleter != nullptr && memory.get_deleter() == deleter;
}

}  // namespace

c10::Storage UploadMemory::allocate(uint64_t nbytes) {
  if (is_pinned_) {
    if (c10::Storage pinned = allocate_pinned(nbytes))
      return pinned;
  }
  if (Block block = take(nbytes); block.memory)
    return storage_over(std::move(block.memory), nbytes);
  c10::DataPtr memory;
  try {
    memory = c10::GetCPUAllocator()->allocate(nbytes);
  } catch (const c10::Error&) {
    if (kept_bytes() == 0)
      throw;
    empty();
    memory = c10::GetCPUAllocator()->allocate(nbytes);
  }
  want_huge_pages({static_cast<std::byte*>(memory.get()), static_cast<size_t>(nbytes)});
  return storage_over(std::move(memory), nbytes);
}

// PyTorch's allocator of pinned memory keeps freed blocks by itself, and does not use one again
// before the copies from it are done. Null: there is none.
c10::Storage UploadMemory::allocate_pinned(uint64_t nbytes) {
  at::HostAllocator* const allocator = at::getHostAllocator(c10::DeviceType::CUDA);
  const at::HostStats stats = allocator->get_stats();
  const auto used = static_cast<uint64_t>(std::max<int64_t>(stats.active_bytes.current, 0));
  const auto owned = static_cast<uint64_t>(std::max<int64_t>(stats.allocated_bytes.current, 0));
  if (nbytes > kMaxPinnedBytes || used > kMaxPinnedBytes - nbytes)
    return {};
  if (owned > kMaxPinnedBytes)
    allocator->empty_cache();
  try {
    return storage_over(allocator->allocate(nbytes), nbytes);
  } catch (const c10::Error&) {
    return {};
  }
}

// The smallest block that is large enough and not much too large; else an empty one.
UploadMemory::Block UploadMemory::take(uint64_t nbytes) {
  MutexLock lock(mutex_);
  auto best = blocks_.end();
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    const bool fits = block->nbytes >= nbytes && block->nbytes - nbytes <= nbytes / 8;
    if (fits && (best == blocks_.end() || block->nbytes < best->nbytes))
      best = block;
  }
  if (best == blocks_.end())
    return {};
  Block taken = std::move(*best);
  blocks_.erase(best);
  kept_bytes_ -= taken.nbytes;
  return taken;
}

void UploadMemory::give_back(c10::Storage memory) {
  if (!memory || memory.use_count() != 1 || memory.nbytes() < kSmallestWarm ||
      memory.nbytes() > room_.load() || !is_plain_memory(memory.data_ptr()))
    return;
  Block block{memory.set_data_ptr(c10::DataPtr(nullptr, c10::kCPU)), memory.nbytes()};
  {
    MutexLock lock(mutex_);
    kept_bytes_ += block.nbytes;
    blocks_.push_back(std::move(block));
  }
  shrink(room_.load());
}

void UploadMemory::set_room(uint64_t bytes) {
  room_ = std::min(bytes, kMaxWarmBytes);
  if (kept_bytes() > room_.load())
    shrink(room_.load());
}

void UploadMemory::shrink(uint64_t bytes) {
  std::vector<Block> given_up;  // freed without the lock
  MutexLock lock(mutex_);
  while (kept_bytes_.load() > bytes) {
    kept_bytes_ -= blocks_.front().nbytes;
    given_up.push_back(std::move(blocks_.front()));
    blocks_.pop_front();
  }
}

}  // namespace torch_remote::server
