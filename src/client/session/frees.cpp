// How the server learns of storages that the program no longer holds.
//
// Note [Frees in order]
//
// A FREE applies at its place in the order of messages. A record is queued when nothing holds its
// storage, so every call that names it is encoded already, and a FREE may be anywhere after that.
// Small storages are freed at the end of the frame, by one message. Large ones are not, or the
// server would hold all temporaries of a frame at once: when 1 MiB is queued, a FREE precedes the
// next message.
#include <algorithm>

#include "client/process/records.h"
#include "client/session/message_order.h"

namespace torch_remote::client {

void MessageOrder::append_frees() {
  freed_bytes_.store(0, std::memory_order_relaxed);
  StorageRecord* record = frees_.exchange(nullptr, std::memory_order_acquire);
  if (record == nullptr)
    return;
  free_names_.clear();
  while (record != nullptr) {
    StorageRecord* next = record->next;
    if (record->announced.load(std::memory_order_relaxed))
      free_names_.push_back(record->name);
    RecordPool::instance().give_back(record);
    record = next;
  }
  if (free_names_.empty())
    return;
  // Oldest first, so that the encoded differences are small.
  std::reverse(free_names_.begin(), free_names_.end());
  constexpr size_t kMost = 1 << 16;
  for (size_t from = 0; from < free_names_.size(); from += kMost) {
    const uint64_t before = messages_.encoded();
    wire::encode_free(
        messages_.writer,
        std::span(free_names_).subspan(from, std::min(kMost, free_names_.size() - from)));
    const uint64_t added = messages_.encoded() - before;
    counters_.bytes_sent += added;
    buffered_bytes_.fetch_add(added, std::memory_order_relaxed);
    if (messages_.writer.size() >= kFrameTarget)
      messages_.cut_frame();
  }
}

void MessageOrder::queue_free(StorageRecord* record, bool is_lost) noexcept {
  const uint64_t nbytes = record->nbytes.load(std::memory_order_relaxed);
  StorageRecord* head = frees_.load(std::memory_order_relaxed);
  do {
    record->next = head;
  } while (!frees_.compare_exchange_weak(head, record, std::memory_order_release,
                                         std::memory_order_relaxed));
  freed_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
  if (is_lost)
    forget_frees();
}

void MessageOrder::forget_frees() noexcept {
  for (StorageRecord* record = frees_.exchange(nullptr); record != nullptr;) {
    StorageRecord* const next = record->next;
    RecordPool::instance().give_back(record);
    record = next;
  }
}

}  // namespace torch_remote::client
