#include "client/session/faults.h"

#include <algorithm>

namespace torch_remote::client {
namespace {

// Ranges of discarded calls beyond this many are joined: more storages are then looked at once.
constexpr size_t kMostRanges = 64;

}  // namespace

void Faults::add(Failure failure) {
  MutexLock lock(mutex_);
  by_thread_.insert_or_assign(failure.error.thread, std::move(failure));
  count_.store(by_thread_.size(), std::memory_order_relaxed);
}

bool Faults::has(uint64_t thread) {
  MutexLock lock(mutex_);
  return by_thread_.contains(thread);
}

std::optional<Failure> Faults::take(uint64_t thread) {
  MutexLock lock(mutex_);
  const auto found = by_thread_.find(thread);
  if (found == by_thread_.end())
    return std::nullopt;
  Failure failure = std::move(found->second);
  by_thread_.erase(found);
  count_.store(by_thread_.size(), std::memory_order_relaxed);
  return failure;
}

std::optional<Failure> Faults::raise_oldest(uint64_t& others) {
  MutexLock lock(mutex_);
  others = 0;
  Failure* oldest = nullptr;
  for (auto& [thread, failure] : by_thread_) {
    if (failure.is_raised)
      continue;
    ++others;
    if (oldest == nullptr || failure.error.since < oldest->error.since)
      oldest = &failure;
  }
  if (oldest == nullptr)
    return std::nullopt;
  --others;
  oldest->is_raised = true;
  return *oldest;
}

void Faults::note_raised(uint64_t call) {
  MutexLock lock(mutex_);
  for (auto& [thread, failure] : by_thread_)
    failure.is_raised |= failure.error.call == call;
}

std::vector<Failure> Faults::untold() {
  std::vector<Failure> all;
  MutexLock lock(mutex_);
  for (const auto& [thread, failure] : by_thread_) {
    if (!failure.is_raised)
      all.push_back(failure);
  }
  std::ranges::sort(all, {}, [](const Failure& failure) { return failure.error.since; });
  return all;
}

std::optional<CallSite> Faults::site_of(uint64_t call) {
  MutexLock lock(mutex_);
  for (const auto& [thread, failure] : by_thread_) {
    if (failure.error.call == call)
      return failure.site;
  }
  return std::nullopt;
}

void Faults::add_discarded(uint64_t first, uint64_t last) {
  MutexLock lock(mutex_);
  if (discarded_.size() == kMostRanges)
    discarded_.back().last = last;
  else
    discarded_.push_back({first, last});
  has_discarded_.store(true, std::memory_order_relaxed);
}

bool Faults::is_discarded(uint64_t call) {
  MutexLock lock(mutex_);
  return std::ranges::any_of(
      discarded_, [call](const Range& range) { return range.first <= call && call <= range.last; });
}

void Faults::clear() {
  MutexLock lock(mutex_);
  by_thread_.clear();
  discarded_.clear();
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace torch_remote::client
