#include "client/session/faults.h"

#include <algorithm>

#include "client/process/threads.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

// Beyond this many, ranges of discarded calls are joined, and more storages are checked once.
constexpr size_t kMostRanges = 64;
constexpr size_t kMostOfEnded = 64;

}  // namespace

std::vector<Failure>::iterator Faults::find(uint64_t thread) {
  return std::ranges::find_if(failures_, [thread](const Failure& failure) {
    return failure.error.thread == thread && !failure.has_ended;
  });
}

void Faults::add(Failure failure) {
  MutexLock lock(mutex_);
  if (const auto known = find(failure.error.thread); known != failures_.end()) {
    *known = std::move(failure);
    return;
  }
  wire::check_limit("stopped threads", count_ + 1, wire::kMaxStoppedThreads);
  failures_.push_back(std::move(failure));
  ++count_;
}

bool Faults::has(uint64_t thread) {
  MutexLock lock(mutex_);
  return find(thread) != failures_.end();
}

std::optional<Failure> Faults::take(uint64_t thread) {
  MutexLock lock(mutex_);
  const auto found = find(thread);
  if (found == failures_.end())
    return std::nullopt;
  Failure failure = std::move(*found);
  failures_.erase(found);
  --count_;
  return failure;
}

void Faults::keep_unreported(Failure failure) {
  failure.has_ended = true;
  MutexLock lock(mutex_);
  failures_.push_back(std::move(failure));
}

std::vector<uint64_t> Faults::take_ended() {
  std::vector<uint64_t> ended;
  MutexLock lock(mutex_);
  for (Failure& failure : failures_) {
    if (failure.has_ended || !has_ended(failure.error.thread))
      continue;
    ended.push_back(failure.error.thread);
    failure.has_ended = true;
  }
  count_ -= ended.size();
  while (failures_.size() - count_ > kMostOfEnded) {  // one that was raised goes first
    const auto raised = std::ranges::find_if(
        failures_, [](const Failure& failure) { return failure.has_ended && failure.is_raised; });
    failures_.erase(raised != failures_.end()
                        ? raised
                        : std::ranges::find(failures_, true, &Failure::has_ended));
  }
  return ended;
}

std::optional<Failure> Faults::raise_oldest(uint64_t& others) {
  MutexLock lock(mutex_);
  Failure* oldest = nullptr;
  uint64_t count = 0;
  for (Failure& failure : failures_) {
    if (failure.is_raised)
      continue;
    ++count;
    if (oldest == nullptr || failure.error.since < oldest->error.since)
      oldest = &failure;
  }
  if (oldest == nullptr)
    return std::nullopt;
  others = count - 1;
  oldest->is_raised = true;
  return *oldest;
}

void Faults::note_raised(const wire::Error& error) {
  MutexLock lock(mutex_);
  for (Failure& failure : failures_) {
    const wire::Error& known = failure.error;
    const bool is_same = known.thread == error.thread && known.since == error.since;
    // The thread whose own call failed. Another that used its result has lost calls of its own.
    const bool is_first = known.call == error.call && known.since == known.call;
    failure.is_raised = failure.is_raised || is_same || is_first;
  }
}

std::vector<Failure> Faults::unreported() {
  MutexLock lock(mutex_);
  std::vector<Failure> all = failures_;
  std::erase_if(all, [](const Failure& failure) { return failure.is_raised; });
  std::ranges::sort(all, {}, [](const Failure& failure) { return failure.error.since; });
  return all;
}

std::optional<CallSite> Faults::site_of(uint64_t call) {
  MutexLock lock(mutex_);
  const auto found =
      std::ranges::find(failures_, call, [](const Failure& failure) { return failure.error.call; });
  return found == failures_.end() ? std::nullopt : found->site;
}

void Faults::add_discarded(const Report& report) {
  MutexLock lock(mutex_);
  if (discarded_.size() < kMostRanges) {
    discarded_.push_back(report);
  } else {
    Report& joined = discarded_.back();
    joined = {report.call, std::min(joined.first, report.first), std::max(joined.last, report.last),
              report.next_request};
  }
  last_discarded_ = std::max(last_discarded_.load(), report.last);
}

bool Faults::was_reported(const Request& request) {
  MutexLock lock(mutex_);
  return std::ranges::any_of(discarded_, [&](const Report& report) {
    return report.call == request.error.call && request.id < report.next_request;
  });
}

bool Faults::is_discarded(uint64_t call) {
  MutexLock lock(mutex_);
  return std::ranges::any_of(discarded_, [call](const Report& report) {
    return report.first <= call && call <= report.last;
  });
}

void Faults::clear() {
  MutexLock lock(mutex_);
  failures_.clear();
  discarded_.clear();
  last_discarded_ = 0;
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace torch_remote::client
