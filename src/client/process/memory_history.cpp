#include "client/process/memory_history.h"

#include <chrono>

namespace torch_remote::client {
namespace {

int64_t now_us() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

uint64_t whole_units(uint64_t bytes) {
  return (bytes + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
}

}  // namespace

MemoryHistory& MemoryHistory::instance() {
  static auto* const history = new MemoryHistory;
  return *history;
}

void MemoryHistory::set(const HistoryOptions& options) {
  MutexLock lock(mutex_);
  options_ = options;
  if (!options.is_on || options.clears) {
    events_.clear();
    stacks_.clear();
  }
  for (auto& [device, events] : events_)
    while (events.size() > options.max_events)
      events.pop_front();
  update_need();
}

void MemoryHistory::set_profiled(bool is_profiled) {
  MutexLock lock(mutex_);
  is_profiled_ = is_profiled;
  update_need();
}

void MemoryHistory::update_need() {
  is_needed_.store(options_.is_on || is_profiled_ || !live_.empty(), std::memory_order_relaxed);
}

Stack MemoryHistory::take_stack(RecordedStacks kind, LineId line) {
  {
    MutexLock lock(mutex_);
    if (!options_.is_on || options_.stacks < kind)
      return nullptr;
  }
  auto stack = std::make_shared<const std::vector<LineId>>(line != 0 ? std::vector<LineId>{line}
                                                                     : current_stack());
  MutexLock lock(mutex_);
  return *stacks_.insert(std::move(stack)).first;
}

void MemoryHistory::add(const Device& device, MemoryEvent event) {
  if (!options_.is_on || options_.max_events == 0 ||
      options_.skipped[static_cast<size_t>(event.kind)])
    return;
  std::deque<MemoryEvent>& events = events_[device];
  if (events.size() >= options_.max_events)
    events.pop_front();
  events.push_back(std::move(event));
}

void MemoryHistory::note_made(const StorageRecord& record) {
  const uint64_t bytes = record.nbytes.load(std::memory_order_relaxed);
  if (bytes == 0)
    return;
  const uint64_t address = record.address.load(std::memory_order_relaxed);
  const Device device(record.session, record.server_device);
  Stack stack = take_stack(RecordedStacks::kLive);
  const int64_t now = now_us();
  MutexLock lock(mutex_);
  using enum MemoryEventKind;
  if (stack != nullptr)
    live_[address] = stack;
  if (options_.stacks < RecordedStacks::kMade)
    stack = nullptr;
  add(device, {kSegmentAlloc, record.stream, address, whole_units(bytes), now, stack});
  add(device, {kAlloc, record.stream, address, bytes, now, stack});
}

void MemoryHistory::note_freed(const StorageRecord& record, uint64_t address, uint64_t bytes) {
  if (bytes == 0)
    return;
  const Device device(record.session, record.server_device);
  const Stack stack = take_stack(RecordedStacks::kFreed);
  const int64_t now = now_us();
  MutexLock lock(mutex_);
  using enum MemoryEventKind;
  live_.erase(address);
  add(device, {kFreeRequested, record.stream, address, bytes, now, stack});
  add(device, {kFreeCompleted, record.stream, address, bytes, now, stack});
  add(device, {kSegmentFree, record.stream, address, whole_units(bytes), now, stack});
  update_need();
}

void MemoryHistory::note_out_of_memory(const void* session, uint8_t device,
                                       const wire::Error& error, LineId line) {
  MemoryEvent event;
  event.kind = MemoryEventKind::kOutOfMemory;
  event.bytes = error.wanted;
  event.address = error.free;
  event.stack = take_stack(RecordedStacks::kMade, line);
  event.time_us = now_us();
  MutexLock lock(mutex_);
  add({session, device}, std::move(event));
}

void MemoryHistory::note_snapshot(const void* session, uint8_t device, uint64_t bytes) {
  MutexLock lock(mutex_);
  add({session, device}, {MemoryEventKind::kSnapshot, 0, 0, bytes, now_us(), nullptr});
}

std::vector<MemoryEvent> MemoryHistory::events(const void* session, uint8_t device) {
  MutexLock lock(mutex_);
  const auto found = events_.find({session, device});
  if (found == events_.end())
    return {};
  return {found->second.begin(), found->second.end()};
}

Stack MemoryHistory::stack_of(uint64_t address) {
  MutexLock lock(mutex_);
  const auto found = live_.find(address);
  return found == live_.end() ? nullptr : found->second;
}

}  // namespace torch_remote::client
