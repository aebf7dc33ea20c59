#include "marshal/encode.h"

namespace torch_remote::marshal {

void Capture::encode_slots(wire::Writer& writer, wire::NameState& names) const {
  const auto numbers = numbers_.view();
  size_t written = 0;
  for (const TensorSlot& slot : tensors_) {
    if (slot.numbers_before != written) {
      writer.raw(numbers.subspan(written, slot.numbers_before - written));
      written = slot.numbers_before;
    }
    if (slot.first_mention) {
      wire::encode_storage_slot(writer, names, slot.record->name, slot.offset);
    } else {
      writer.varint(slot.offset);
    }
  }
  if (written != numbers.size())
    writer.raw(numbers.subspan(written));
}

bool Capture::is_current() const {
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (fresh_[i] != 0 && storages_[i]->announced.load(std::memory_order_relaxed))
      return false;
  }
  return true;
}

void Capture::mark_announced(uint64_t call) const {
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (fresh_[i] == 0)
      continue;
    storages_[i]->announced.store(true, std::memory_order_relaxed);
    storages_[i]->made_by.store(call, std::memory_order_relaxed);
  }
}

}  // namespace torch_remote::marshal
