#include "client/capture/capture.h"

namespace torch_remote::client {

bool Capture::is_current() const {
  for (size_t i = 0; i < storages_.size(); ++i)
    if (fresh_[i] != 0 && storages_[i]->announced.load(std::memory_order_relaxed))
      return false;
  return true;
}

void Capture::mark_announced(uint64_t call, uint64_t thread) const {
  for (size_t i = 0; i < storages_.size(); ++i)
    if (fresh_[i] != 0)
      storages_[i]->note_made(call, thread);
}

}  // namespace torch_remote::client
