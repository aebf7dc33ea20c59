#include "base/block_pool.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "base/platform.h"

namespace torch_remote {

BlockPool::Block BlockPool::take(size_t nbytes) {
  if (const Block kept = take_kept(nbytes); kept.memory != nullptr)
    return kept;
  Block block{nullptr, nbytes};
  try {
    block.memory = source_.allocate(nbytes);
  } catch (const std::exception&) {
    if (kept_bytes() == 0)
      throw;
    empty();
    block.memory = source_.allocate(nbytes);
  }
  want_huge_pages({static_cast<std::byte*>(block.memory), nbytes});
  return block;
}

// The smallest block that is large enough and not much too large; else an empty one.
BlockPool::Block BlockPool::take_kept(size_t nbytes) {
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

void BlockPool::keep(Block block) {
  const uint64_t room = std::min(room_.load(), most_);
  if (block.nbytes > room)
    return free(block);
  {
    MutexLock lock(mutex_);
    kept_.push_back(block);
    kept_bytes_ += block.nbytes;
  }
  shrink(room);
}

void BlockPool::set_room(uint64_t bytes) {
  room_ = bytes;
  if (kept_bytes() > bytes)
    shrink(bytes);
}

void BlockPool::shrink(uint64_t bytes) {
  std::vector<Block> given_up;  // freed without the lock
  {
    MutexLock lock(mutex_);
    while (kept_bytes_.load() > bytes) {
      kept_bytes_ -= kept_.front().nbytes;
      given_up.push_back(kept_.front());
      kept_.pop_front();
    }
  }
  for (const Block& block : given_up)
    free(block);
}

}  // namespace torch_remote
