#include "client/memory/download_memory.h"

#include <vector>

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "base/platform.h"
#include "client/session/process.h"

namespace torch_remote::client {
namespace {

// The allocator that the blocks come from, the first one that is asked for.
c10::Allocator& allocator() {
  static c10::Allocator* const allocator = c10::GetCPUAllocator();
  return *allocator;
}

}  // namespace

DownloadMemory& DownloadMemory::instance() {
  static auto* const memory = new DownloadMemory;
  return *memory;
}

c10::DataPtr DownloadMemory::allocate(size_t nbytes) {
  Block block = take(nbytes);
  if (block.memory == nullptr)
    block = make(nbytes);
  MutexLock lock(mutex_);
  used_[block.memory] = block.nbytes;
  return {block.memory, block.memory, &give_back, c10::kCPU};
}

DownloadMemory::Block DownloadMemory::make(size_t nbytes) {
  void* memory = nullptr;
  try {
    memory = allocator().raw_allocate(nbytes);
  } catch (const c10::Error&) {
    if (kept_bytes() == 0)
      throw;
    empty();
    memory = allocator().raw_allocate(nbytes);
  }
  want_huge_pages({static_cast<std::byte*>(memory), nbytes});
  return {memory, nbytes};
}

DownloadMemory::Block DownloadMemory::take(size_t nbytes) {
  MutexLock lock(mutex_);
  auto best = kept_.end();
  for (auto block = kept_.begin(); block != kept_.end(); ++block) {
    const bool fits = block->nbytes >= nbytes && block->nbytes - nbytes <= nbytes / 8;
    if (fits && (best == kept_.end() || block->nbytes <= best->nbytes))
      best = block;
  }
  if (best == kept_.end())
    return {};
  const Block taken = *best;
  kept_.erase(best);
  kept_bytes_ -= taken.nbytes;
  return taken;
}

// The deleter of the tensors. In the child of a fork another thread may have held the lock.
void DownloadMemory::give_back(void* memory) {
  if (in_forked_child())
    return allocator().raw_deallocate(memory);
  instance().keep(memory);
}

void DownloadMemory::keep(void* memory) {
  {
    MutexLock lock(mutex_);
    const auto found = used_.find(memory);
    kept_.push_back({memory, found->second});
    kept_bytes_ += found->second;
    used_.erase(found);
  }
  shrink(kMaxKeptBytes);
}

void DownloadMemory::empty() {
  if (!in_forked_child())
    shrink(0);
}

void DownloadMemory::shrink(uint64_t bytes) {
  std::vector<void*> given_up;
  {
    MutexLock lock(mutex_);
    while (kept_bytes_ > bytes) {
      kept_bytes_ -= kept_.front().nbytes;
      given_up.push_back(kept_.front().memory);
      kept_.pop_front();
    }
  }
  for (void* const memory : given_up)
    allocator().raw_deallocate(memory);
}

uint64_t DownloadMemory::kept_bytes() {
  MutexLock lock(mutex_);
  return kept_bytes_;
}

at::Tensor empty_for_download(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              at::ScalarType dtype) {
  const size_t nbytes = c10::multiply_integers(sizes) * c10::elementSize(dtype);
  // An allocator without a raw deleter frees by a context, which our deleter would not have.
  if (nbytes < kSmallestKept || allocator().raw_deleter() == nullptr)
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes,
                       DownloadMemory::instance().allocate(nbytes), c10::GetCPUAllocator(), true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace torch_remote::client
