#include "client/session/faults.h"

#include <algorithm>

#include "client/session/threads.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

// Beyond this many, ranges of discarded calls are joined, and more storages are checked once.
constexpr size_t kMostRanges = 64;
constexpr size_t kMostOfEnded = 64;

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

std::vector<uint64_t> Faults::take_ended() {
  std::vector<uint64_t> ended;
  MutexLock lock(mutex_);
  for (auto& [thread, failure] : by_thread_) {
    if (!has_ended(thread))
      continue;
    ended.push_back(thread);
    of_ended_.push_back(std::move(failure));
    if (of_ended_.size() > kMostOfEnded) {  // one that was raised goes first, else the oldest
      const auto raised = std::ranges::find(of_ended_, true, &Failure::is_raised);
      of_ended_.erase(raised == of_ended_.end() ? of_ended_.begin() : raised);
    }
  }
  for (const uint64_t thread : ended)
    by_thread_.erase(thread);
  count_.store(by_thread_.size(), std::memory_order_relaxed);
  return ended;
}

std::optional<Failure> Faults::raise_oldest(uint64_t& others) {
  MutexLock lock(mutex_);
  std::vector<Failure*> untold;
  for (auto& [thread, failure] : by_thread_)
    untold.push_back(&failure);
  for (Failure& failure : of_ended_)
    untold.push_back(&failure);
  std::erase_if(untold, [](const Failure* failure) { return failure->is_raised; });
  if (untold.empty())
    return std::nullopt;
  others = untold.size() - 1;
  Failure& oldest = **std::ranges::min_element(
      untold, {}, [](const Failure* failure) { return failure->error.since; });
  oldest.is_raised = true;
  return oldest;
}

void Faults::note_raised(const wire::Error& error) {
  const auto note = [&](Failure& failure) {
    const wire::Error& known = failure.error;
    const bool is_same = known.thread == error.thread && known.since == error.since;
    // The thread whose own call failed. Another that used its result has lost calls of its own.
    const bool is_first = known.call == error.call && known.since == known.call;
    failure.is_raised = failure.is_raised || is_same || is_first;
  };
  MutexLock lock(mutex_);
  for (auto& [thread, failure] : by_thread_)
    note(failure);
  std::ranges::for_each(of_ended_, note);
}

std::vector<Failure> Faults::untold() {
  MutexLock lock(mutex_);
  std::vector<Failure> all = of_ended_;
  for (const auto& [thread, failure] : by_thread_)
    all.push_back(failure);
  std::erase_if(all, [](const Failure& failure) { return failure.is_raised; });
  std::ranges::sort(all, {}, [](const Failure& failure) { return failure.error.since; });
  return all;
}

std::optional<CallSite> Faults::site_of(uint64_t call) {
  MutexLock lock(mutex_);
  for (const auto& [thread, failure] : by_thread_) {
    if (failure.error.call == call)
      return failure.site;
  }
  const auto found =
      std::ranges::find(of_ended_, call, [](const Failure& failure) { return failure.error.call; });
  return found == of_ended_.end() ? std::nullopt : found->site;
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
  last_discarded_ = std::max(last_discarded_.load(), told.last);
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
  of_ended_.clear();
  discarded_.clear();
  last_discarded_ = 0;
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace torch_remote::client
