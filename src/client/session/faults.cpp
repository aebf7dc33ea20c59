#include "client/session/faults.h"

#include <algorithm>

#include "wire/limits.h"

namespace torch_remote::client {
namespace {

// Ranges of discarded calls beyond this many are joined: more storages are then looked at once.
constexpr size_t kMostRanges = 64;

}  // namespace

void Faults::add(Failure failure) {
  MutexLock lock(mutex_);
  wire::check_limit("stopped threads", by_thread_.size() + 1, wire::kMaxStoppedThreads);
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

void Faults::add_discarded(const Told& told) {
  MutexLock lock(mutex_);
  if (discarded_.size() < kMostRanges) {
    discarded_.push_back(told);
  } else {
    Told& joined = discarded_.back();
    joined = {told.call, std::min(joined.first, told.first), std::max(joined.last, told.last),
              told.next_request};
  }
  has_discarded_.store(true, std::memory_order_relaxed);
}

bool Faults::has_told(const Request& request) {
  MutexLock lock(mutex_);
  return std::ranges::any_of(discarded_, [&](const Told& told) {
    return told.call == request.error.call && request.id < told.next_request;
  });
}

bool Faults::is_discarded(uint64_t call) {
  MutexLock lock(mutex_);
  return std::ranges::any_of(
      discarded_, [call](const Told& told) { return told.first <= call && call <= told.last; });
}

void Faults::clear() {
  MutexLock lock(mutex_);
  by_thread_.clear();
  discarded_.clear();
  has_discarded_.store(false, std::memory_order_relaxed);
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace torch_remote::client
