#include "client/session/stream.h"

#include <algorithm>

#include "transport/frame.h"

namespace torch_remote::client {

void CallStream::cut_frame() {
  if (writer_.empty())
    return;
  counters_.bytes_sent += transport::kHeaderSize;
  encoded_ += writer_.size();
  frames_.push_back({writer_.take(), calls_});
  calls_ = 0;
  names_ = {};
}

bool CallStream::announce(wire::Writer& writer, StorageRecord& record, CallSite site) {
  if (record.announced.exchange(true, std::memory_order_relaxed))
    return false;
  site.operation = kResizeSite;
  if (are_streams_used())
    use_stream(record.server_device, record.stream);  // it gets its memory on this stream
  number_message(site);
  encode(writer, wire::Resize{record.name, record.server_device,
                              record.nbytes.load(std::memory_order_relaxed)});
  return true;
}

std::vector<std::byte> CallStream::take_frame(uint32_t& calls) {
  MutexLock lock(mutex_);
  if (frames_.empty()) {
    append_frees();
    cut_frame();
  }
  if (frames_.empty())
    return {};
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  calls = frame.calls;
  buffered_bytes_.fetch_sub(std::min<uint64_t>(frame.payload.size(), buffered_bytes_.load()),
                            std::memory_order_relaxed);
  return std::move(frame.payload);
}

std::optional<CallSite> CallStream::site_of(uint64_t call) {
  MutexLock lock(lines_mutex_);
  return lines_.find(call);
}

uint64_t CallStream::count_calls(uint64_t first, uint64_t last, uint64_t thread) {
  MutexLock lock(lines_mutex_);
  return lines_.count(first, last, static_cast<uint32_t>(thread));
}

void CallStream::clear() {
  std::vector<std::unique_ptr<CallLines::Page>> lines;  // destroyed without the locks
  {
    MutexLock lock(mutex_);
    MutexLock looking(lines_mutex_);
    lines = lines_.take_pages();
    signatures_.clear();
    frames_.clear();
    writer_ = {};
    free_names_ = {};
  }
  forget_frees();
}

}  // namespace torch_remote::client
