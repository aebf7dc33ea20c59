#include "client/session/pending.h"

#include <algorithm>

#include "client/process/process.h"

namespace torch_remote::client {
namespace {

// How many may be pending: as many launches as CUDA queues.
constexpr size_t kMostPending = 1024;

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

bool is_good(const Request& request) {
  return request.done && !request.failed;
}

}  // namespace

PendingDownloads& PendingDownloads::instance() {
  static auto* downloads = new PendingDownloads;
  return *downloads;
}

template <typename Predicate>
std::vector<PendingDownloads::Entry> PendingDownloads::take_if(Predicate&& is_over) {
  std::vector<Entry> over;
  MutexLock lock(mutex_);
  const auto end = std::stable_partition(entries_.begin(), entries_.end(),
                                         [&](const Entry& entry) { return !is_over(entry); });
  over.assign(std::make_move_iterator(end), std::make_move_iterator(entries_.end()));
  entries_.erase(end, entries_.end());
  size_ = entries_.size();
  return over;
}

std::optional<PendingDownloads::Entry> PendingDownloads::add(Entry entry) {
  std::vector<Entry> over;  // destroyed without the lock
  MutexLock lock(mutex_);
  while (!entries_.empty() && is_good(*entries_.front().request)) {
    over.push_back(std::move(entries_.front()));
    entries_.pop_front();
  }
  entries_.push_back(std::move(entry));
  size_ = entries_.size();
  if (entries_.size() <= kMostPending)
    return std::nullopt;
  const auto found = std::ranges::find_if(
      entries_, [](const Entry& candidate) { return !candidate.request->done; });
  return found == entries_.end() ? std::nullopt : std::optional<Entry>(*found);
}

void PendingDownloads::drop_good() {
  const auto good = take_if([](const Entry& entry) { return is_good(*entry.request); });
}

std::vector<PendingDownloads::Entry> PendingDownloads::writers_to(
    std::span<const std::byte> memory) {
  std::vector<Entry> found;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_)
    if (!entry.request->done && overlap(entry.request->destination, memory))
      found.push_back(entry);
  return found;
}

std::vector<RequestPtr> PendingDownloads::of(const Session& session) {
  std::vector<RequestPtr> requests;
  if (is_empty())
    return requests;
  drop_good();
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.session == &session)
      requests.push_back(entry.request);
  return requests;
}

void PendingDownloads::forget_cause(const Session& session, uint64_t cause, const Request* told) {
  if (is_empty())
    return;
  const auto over = take_if([&](const Entry& entry) {
    if (entry.session != &session || !entry.request->done || !entry.request->failed)
      return false;
    return entry.request.get() == told || (cause != 0 && entry.request->error.call == cause);
  });
}

void PendingDownloads::forget(const Session& session) {
  const auto over = take_if([&](const Entry& entry) { return entry.session == &session; });
}

SentSources& SentSources::instance() {
  static auto* const sources = new SentSources;
  return *sources;
}

std::shared_ptr<const void> SentSources::keep(const c10::Storage& storage) {
  free_done();
  return {new c10::Storage(storage), [this](c10::Storage* done) {
            MutexLock lock(mutex_);
            done_.emplace_back(done);
          }};
}

void SentSources::free_done() {
  if (in_forked_child())  // another thread may have held the lock
    return;
  std::vector<std::unique_ptr<c10::Storage>> done;  // destroyed without the lock
  MutexLock lock(mutex_);
  done.swap(done_);
}

}  // namespace torch_remote::client
