#include "client/call/prefetch.h"

#include <memory>
#include <set>

#include <sys/mman.h>

#include <ATen/NestedTensorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/platform.h"
#include "client/memory/downloads.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

// Limits on downloads that were sent and not taken.
constexpr uint64_t kMostBytes = 64 << 20;
constexpr size_t kMostWaiting = 1024;

// A result of this size or more gets pages of its own, which return to the system when it is freed.
// On the heap, small objects between them would keep a saved model's memory occupied.
constexpr size_t kOwnPages = 1 << 20;

thread_local std::unique_ptr<Prefetch> active_plan;

at::Tensor empty_result(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes < kOwnPages)
    return empty_for(tensor);
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    return empty_for(tensor);
  want_huge_pages({static_cast<std::byte*>(pages), bytes});
  return at::from_blob(
      pages, tensor.sizes(), [bytes](void* begin) { ::munmap(begin, bytes); },
      tensor.options().device(at::kCPU));
}

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
  // A wrapped tensor has no storage of ours: Note [Wrapped tensors].
  if (is_given_up_ || own_record(*tensor.unsafeGetTensorImpl()) == nullptr)
    return;
  if (tensor.is_nested())  // its buffer is what is copied
    return plan(at::native::get_nested_tensor_impl(tensor)->get_unsafe_storage_as_tensor());
  if (tensor.numel() == 0 || find(tensor) != nullptr)
    return;
  // A detached alias: Module.to() may swap the parameter, which must have no other reference.
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor alias = tensor.detach();
  const StorageRecord* const record = record_of(alias);
  by_record_.emplace(record, entries_.size());
  entries_.push_back(
      {alias, offset_of(*alias.unsafeGetTensorImpl(), *record), marshal::spec_of(alias), {}, {}});
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
  const uint64_t offset = offset_of(*tensor.unsafeGetTensorImpl(), *record);
  const wire::TensorSpec spec = marshal::spec_of(tensor);
  for (auto candidate = first; candidate != last; ++candidate) {
    Entry& entry = entries_[candidate->second];
    if (entry.tensor.defined() && entry.offset == offset && entry.spec == spec)
      return &entry;
  }
  return nullptr;
}

bool Prefetch::start() {
  std::set<Session*> sessions;
  for (const Entry& entry : entries_) {
    StorageRecord& record = *record_of(entry.tensor);
    Session& session = *session_of(record);
    sessions.insert(&session);
    // Announced before last_calls_ is read, because announcing is numbered as a call.
    Submission(session).announce(record, {0, record.server_device});
  }
  for (Session* session : sessions) {
    last_calls_[session] = session->order().submitted();
    session->query(wire::QueryKind::kBarrier, "synchronize");
    if (session->faults().has(current_thread()))
      return false;
  }
  is_started_ = true;
  return true;
}

void Prefetch::send(Entry& entry) {
  entry.result = empty_result(entry.tensor);
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
    Session& session = *session_of(*record_of(entry.tensor));
    if (session.order().submitted() != last_calls_.at(&session))
      return;  // another thread makes calls: a value that is asked for now would be discarded
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
  if (download.session->order().submitted() != download.call) {
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
  entry->download = {};  // its request also holds the result
  return result;
}

}  // namespace torch_remote::client
