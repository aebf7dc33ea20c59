#include "client/prefetch.h"

#include <memory>
#include <set>

#include <ATen/ops/empty.h>

#include "client/copy.h"
#include "client/storage.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

// So much of what nobody has taken yet may be under way or here.
constexpr uint64_t kMostBytes = 64 << 20;
constexpr size_t kMostWaiting = 1024;

thread_local std::unique_ptr<Prefetch> active_plan;

}  // namespace

Prefetch* Prefetch::active() {
  return active_plan.get();
}

bool Prefetch::begin() {
  if (active_plan != nullptr)
    return false;
  active_plan = std::make_unique<Prefetch>();
  return true;
}

void Prefetch::end() {
  active_plan.reset();
}

void Prefetch::plan(const at::Tensor& tensor) {
  if (is_given_up_ || tensor.numel() == 0)
    return;
  // Not the tensor itself: Module.to() gives a parameter other data, or swaps it, which needs its
  // only reference.
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor alias = tensor.detach();
  const StorageRecord* const record = record_of(alias);
  by_record_.emplace(record, entries_.size());
  entries_.push_back({alias,
                      marshal::offset_of(*alias.unsafeGetTensorImpl(), *record),
                      marshal::spec_of(alias),
                      {},
                      {}});
}

void Prefetch::plan(const c10::Storage& storage) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  plan(at::empty({0}, options).set_(storage));
}

Prefetch::Entry* Prefetch::find(const at::Tensor& tensor) {
  const StorageRecord* const record = record_of(tensor);
  const auto [first, last] = by_record_.equal_range(record);
  if (first == last)
    return nullptr;
  const uint64_t offset = marshal::offset_of(*tensor.unsafeGetTensorImpl(), *record);
  const wire::TensorSpec spec = marshal::spec_of(tensor);
  for (auto candidate = first; candidate != last; ++candidate) {
    Entry& entry = entries_[candidate->second];
    if (entry.tensor.defined() && entry.offset == offset && entry.spec == spec)
      return &entry;
  }
  return nullptr;
}

bool Prefetch::start() {
  is_started_ = true;
  std::set<Session*> sessions;
  for (const Entry& entry : entries_) {
    StorageRecord& record = *record_of(entry.tensor);
    Session& session = *session_of(record);
    sessions.insert(&session);
    // Now, because it gets a number.
    session.submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
      return session.announce(writer, record, {0, record.server_device});
    });
  }
  for (Session* session : sessions) {
    if (!session->finish_calls().errors.empty())
      return false;
  }
  return true;
}

void Prefetch::send(Entry& entry) {
  entry.result = empty_for(entry.tensor);
  entry.download = start_download(entry.tensor, memory_of(entry.result),
                                  std::make_shared<at::Tensor>(entry.result));
  ++waiting_;
  window_ += entry.result.nbytes();
}

void Prefetch::fill_window() {
  for (; next_ < entries_.size() && waiting_ < kMostWaiting; ++next_) {
    Entry& entry = entries_[next_];
    if (!entry.tensor.defined() || entry.result.defined())
      continue;
    if (window_ + entry.tensor.nbytes() > kMostBytes)
      return;
    send(entry);
  }
}

void Prefetch::give_up() {
  is_given_up_ = true;
  entries_.clear();
  by_record_.clear();
}

std::optional<at::Tensor> Prefetch::take(const at::Tensor& tensor) {
  Entry* const entry = find(tensor);
  if (entry == nullptr)
    return std::nullopt;
  if (!is_started_ && !start()) {
    give_up();
    return std::nullopt;
  }
  if (!entry->result.defined())
    send(*entry);
  fill_window();
  const Download download = entry->download;
  const at::Tensor result = entry->result;
  if (download.session->call_number() != download.call) {
    give_up();
    return std::nullopt;
  }
  if (!download.request->done)
    download.session->wait_quietly(download.request, "a value");
  if (download.request->failed) {
    give_up();
    download.session->raise_failed(*download.request);
  }
  --waiting_;
  window_ -= result.nbytes();
  entry->tensor.reset();
  entry->result.reset();
  return result;
}

}  // namespace torch_remote::client
