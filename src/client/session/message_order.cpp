#include "client/session/message_order.h"

#include <algorithm>

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

}  // namespace torch_remote::client
