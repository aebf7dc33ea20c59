#include "client/memory/download_memory.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "base/block_pool.h"
#include "client/process/process.h"

namespace torch_remote::client {
namespace {

// The allocator that the blocks come from, the first one that is asked for.
c10::Allocator& allocator() {
  static c10::Allocator* const allocator = c10::GetCPUAllocator();
  return *allocator;
}

// Tensors that are used. A DataPtr whose context is not its memory cannot be cloned lazily, so the
// size of a block is found by its address.
AddressTable<BlockPool::Block>& used_blocks() {
  static auto* const used = new AddressTable<BlockPool::Block>;
  return *used;
}

}  // namespace

DownloadMemory::DownloadMemory()
    : pool_({[](size_t nbytes) { return allocator().raw_allocate(nbytes); },
             [](void* memory) { allocator().raw_deallocate(memory); }},
            kMaxKeptBytes) {}

DownloadMemory& DownloadMemory::instance() {
  static auto* const memory = new DownloadMemory;
  return *memory;
}

c10::DataPtr DownloadMemory::allocate(size_t nbytes) {
  const BlockPool::Block block = pool_.take(nbytes);
  used_blocks().add(block.memory, block);
  return {block.memory, block.memory, &give_back, c10::kCPU};
}

// The deleter of the tensors. In the child of a fork another thread may have held the lock.
void DownloadMemory::give_back(void* memory) {
  if (in_forked_child())
    return allocator().raw_deallocate(memory);
  instance().pool_.keep(used_blocks().take(memory));
}

void DownloadMemory::empty() {
  if (!in_forked_child())
    pool_.empty();
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
