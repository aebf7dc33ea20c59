#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch_remote::marshal {

// Where a pointer is in a list that only grows: few are looked at one by one, more are kept in a hash table. A call may
// mention a million tensors.
class PointerIndex {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // The list has begun anew.
  void clear() {
    slots_.clear();
    count_ = 0;
  }

  // The first place. No pointer of `list` is null; those that were in it at the last call still are.
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

  // Where the pointer is, or belongs.
  size_t place_of(const void* pointer) const {
    const size_t mask = slots_.size() - 1;
    const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer));
    size_t at = (bits * 0x9e3779b97f4a7c15ULL >> 20) & mask;
    while (slots_[at].first != nullptr && slots_[at].first != pointer)
      at = (at + 1) & mask;
    return at;
  }

  std::vector<std::pair<const void*, uint32_t>> slots_;
  size_t count_ = 0;  // of the list's pointers that are in slots_
};

}  // namespace torch_remote::marshal
