#include "client/downloads.h"

#include <algorithm>

#include "client/storage.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

// How many may be pending. CUDA's queue of launches ends at as many.
constexpr size_t kMostPending = 1024;

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

bool is_good(const Request& request) {
  return request.done && !request.failed;
}

}  // namespace

Download start_download(const at::Tensor& tensor, std::span<std::byte> into,
                        std::shared_ptr<const void> owner) {
  StorageRecord& record = *record_of(tensor);
  Session& session = *session_of(record);
  Download download{&session, session.make_request(into, std::move(owner))};
  download.request->device = record.server_device;
  download.request->storage = record.name;
  wire::Read read;
  read.request = download.request->id;
  read.storage = record.name;
  read.offset = marshal::offset_of(*tensor.unsafeGetTensorImpl(), record);
  read.spec = marshal::spec_of(tensor);
  session.submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    session.announce(writer, record, {0, record.server_device});  // making a storage does not fail
    download.call = session.last_call();
    encode(writer, read);
    return true;
  });
  return download;
}

std::span<std::byte> memory_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.numel() == 0)
    return {};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    last += (tensor.size(i) - 1) * tensor.stride(i);
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  return {begin, static_cast<size_t>(last + 1) * tensor.itemsize()};
}

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

void PendingDownloads::add(const Download& download, const c10::Storage& destination) {
  std::vector<Entry> over;  // dropped without the lock
  Entry oldest{};
  {
    MutexLock lock(mutex_);
    while (!entries_.empty() && is_good(*entries_.front().request)) {
      over.push_back(std::move(entries_.front()));
      entries_.pop_front();
    }
    entries_.push_back({download.session, download.request, destination});
    size_ = entries_.size();
    if (entries_.size() <= kMostPending)
      return;
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [](const Entry& entry) { return !entry.request->done; });
    if (found != entries_.end())
      oldest = *found;
  }
  if (oldest.session != nullptr && !oldest.session->is_lost())
    oldest.session->wait_quietly(oldest.request, "a download");
  const auto good = take_if([](const Entry& entry) { return is_good(*entry.request); });
}

std::vector<PendingDownloads::Entry> PendingDownloads::writers_to(
    std::span<const std::byte> memory) {
  std::vector<Entry> found;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (!entry.request->done && overlap(entry.request->destination, memory))
      found.push_back(entry);
  }
  return found;
}

void PendingDownloads::finish(const at::Tensor& tensor) {
  if (size_.load() == 0)
    return;
  for (const Entry& entry : writers_to(memory_of(tensor))) {
    if (!entry.session->is_lost())
      entry.session->wait_quietly(entry.request, "a download");
  }
}

std::vector<std::shared_ptr<Request>> PendingDownloads::of(const Session& session) {
  std::vector<std::shared_ptr<Request>> requests;
  if (size_.load() == 0)
    return requests;
  const auto good = take_if([](const Entry& entry) { return is_good(*entry.request); });
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.session == &session)
      requests.push_back(entry.request);
  }
  return requests;
}

void PendingDownloads::forget_cause(const Session& session, uint64_t cause, const Request* told) {
  const auto over = take_if([&](const Entry& entry) {
    if (entry.session != &session || !entry.request->done || !entry.request->failed)
      return false;
    return entry.request.get() == told || (cause != 0 && entry.request->error.call == cause);
  });
}

void PendingDownloads::forget(const Session& session) {
  const auto over = take_if([&](const Entry& entry) { return entry.session == &session; });
}

}  // namespace torch_remote::client
