#include "client/capture/capture.h"

namespace torch_remote::client {

void Capture::encode_slots(wire::Writer& writer, wire::NameState& names) const {
  const auto numbers = numbers_.view();
  size_t written = 0;
  for (const TensorSlot& slot : tensors_) {
    if (slot.numbers_before != written) {
      wire::append_slots(writer, numbers.subspan(written, slot.numbers_before - written));
      written = slot.numbers_before;
    }
    if (slot.first_mention)
      wire::encode_storage_slot(writer, names, slot.record->name, slot.offset);
    else
      wire::encode_offset(writer, slot.offset);
  }
  if (written != numbers.size())
    wire::append_slots(writer, numbers.subspan(written));
}

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
