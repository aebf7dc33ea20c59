#include "client/session/message_order.h"

#include <algorithm>

#include "client/process/records.h"
#include "transport/frame.h"

namespace torch_remote::client {

void MessageBuffer::cut_frame() {
  if (writer.empty())
    return;
  encoded_before += writer.size();
  frames.push_back({writer.take(), calls});
  calls = 0;
  names = {};
}

std::vector<std::byte> MessageOrder::take_frame(uint32_t& calls) {
  MutexLock lock(mutex_);
  if (messages_.frames.empty()) {
    append_frees();
    messages_.cut_frame();
  }
  if (messages_.frames.empty())
    return {};
  MessageBuffer::CutFrame frame = std::move(messages_.frames.front());
  messages_.frames.pop_front();
  calls = frame.calls;
  counters_.bytes_sent += transport::kHeaderSize;
  buffered_bytes_.fetch_sub(std::min<uint64_t>(frame.payload.size(), buffered_bytes_.load()),
                            std::memory_order_relaxed);
  return std::move(frame.payload);
}

std::optional<CallSite> MessageOrder::site_of(uint64_t call) {
  MutexLock lock(lines_mutex_);
  return lines_.find(call);
}

uint64_t MessageOrder::count_calls(uint64_t first, uint64_t last, uint64_t thread) {
  MutexLock lock(lines_mutex_);
  return lines_.count(first, last, static_cast<uint32_t>(thread));
}

void MessageOrder::clear() {
  std::vector<std::unique_ptr<CallLines::Page>> lines;  // destroyed without the locks
  {
    MutexLock lock(mutex_);
    MutexLock looking(lines_mutex_);
    lines = lines_.take_pages();
    messages_.signatures.clear();
    messages_.programs.clear();
    messages_.frames.clear();
    messages_.writer = {};
    free_names_ = {};
  }
  forget_frees();
}

// Note [Frees in order]
//
// A FREE applies at its place in the order of messages. A record is queued when nothing holds its
// storage, so every call that names it is encoded already, and a FREE may be anywhere after that.
// Small storages are freed at the end of the frame, by one message. Large ones are not, or the
// server would hold all temporaries of a frame at once: when 1 MiB is queued, a FREE precedes the
// next message.

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
