#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch_remote::marshal {

// Finds a pointer in a list that only grows, which may hold a million tensors. Short lists are
// searched, longer ones have a hash table.
class PointerIndex {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // Call when the list is emptied.
  void clear() {
    slots_.clear();
    count_ = 0;
  }

  // The first index, or kNone. `list` has no null and begins with what it had at the last call.
  template <typename List>
  size_t find(const List& list, const void* wanted) {
    if (list.size() <= kFew) {
      const auto found = std::find(list.begin(), list.end(), wanted);
      return found == list.end() ? kNone : static_cast<size_t>(found - list.begin());
    }
    if (slots_.size() < list.size() * 2) {
      slots_.assign(std::bit_ceil(list.size() * 4), {nullptr, 0});
      count_ = 0;
    }
    for (; count_ < list.size(); ++count_) {
      auto& slot = slots_[place_of(list[count_])];
      if (slot.first == nullptr)
        slot = {list[count_], static_cast<uint32_t>(count_)};
    }
    const auto& slot = slots_[place_of(wanted)];
    return slot.first == nullptr ? kNone : slot.second;
  }

 private:
  static constexpr size_t kFew = 16;

  // The slot that has the pointer, or the free one where it belongs.
  size_t place_of(const void* pointer) const {
    const size_t mask = slots_.size() - 1;
    const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer));
    size_t at = (bits * 0x9e3779b97f4a7c15ULL >> 20) & mask;
    while (slots_[at].first != nullptr && slots_[at].first != pointer)
      at = (at + 1) & mask;
    return at;
  }

  std::vector<std::pair<const void*, uint32_t>> slots_;
  size_t count_ = 0;  // so many of the list's pointers are in slots_
};

}  // namespace torch_remote::marshal
