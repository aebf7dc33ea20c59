#include "server/bytes/upload_memory.h"

#include <algorithm>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "base/block_pool.h"

namespace torch_remote::server {
namespace {

c10::Storage storage_over(c10::DataPtr memory, uint64_t nbytes) {
  return {c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes), std::move(memory),
          c10::GetCPUAllocator(), true};
}

std::shared_ptr<BlockPool> make_pool() {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  return std::make_shared<BlockPool>(
      BlockPool::Source{[allocator](size_t nbytes) { return allocator->raw_allocate(nbytes); },
                        [allocator](void* memory) { allocator->raw_deallocate(memory); }},
      kMaxWarmBytes);
}

// A block that a storage uses.
struct Used {
  std::shared_ptr<BlockPool> pool;  // storages may outlive the session
  BlockPool::Block block;
};

// A DataPtr whose context is not its memory cannot be cloned lazily, so a block is found by its
// address.
AddressTable<Used>& used_blocks() {
  static auto* const used = new AddressTable<Used>;  // leaks: storages may be freed at exit
  return *used;
}

}  // namespace

UploadMemory::UploadMemory(bool pinned) : is_pinned_(pinned), pool_(make_pool()) {}

c10::Storage UploadMemory::allocate(uint64_t nbytes) {
  if (is_pinned_) {
    if (c10::Storage pinned = allocate_pinned(nbytes))
      return pinned;
  }
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  if (nbytes < BlockPool::kSmallest || allocator->raw_deleter() == nullptr)
    return storage_over(allocator->allocate(nbytes), nbytes);
  const BlockPool::Block block = pool_->take(nbytes);
  used_blocks().add(block.memory, {pool_, block});
  return storage_over({block.memory, block.memory, &give_back, c10::kCPU}, nbytes);
}

// The deleter of the memory.
void UploadMemory::give_back(void* memory) {
  const Used used = used_blocks().take(memory);
  used.pool->keep(used.block);
}

uint64_t UploadMemory::bytes_behind(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() != &give_back)
    return storage.nbytes();
  return used_blocks().find(data.get()).block.nbytes;
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

}  // namespace torch_remote::server
