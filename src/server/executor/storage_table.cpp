#include "server/executor/storage_table.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>

#include "base/error.h"
#include "server/device/out_of_memory.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMostSpare = 1024;

// What there is of a storage: a library's kernel may have made it smaller than it is said to be.
uint64_t present_bytes(const Entry& entry) {
  return entry.storage ? std::min<uint64_t>(entry.nbytes, entry.storage.nbytes()) : entry.nbytes;
}

// What of the memory limit the storage takes, once it has memory.
uint64_t held_by(const Entry& entry) {
  return entry.storage ? UploadMemory::bytes_behind(entry.storage) : entry.nbytes;
}

c10::Storage allocate(uint64_t nbytes, c10::Device device) {
  std::optional<c10::DeviceGuard> guard;  // CUDA allocates on the current device
  if (!device.is_cpu())
    guard.emplace(device);
  c10::Allocator* const allocator =
      device.is_cpu() ? c10::GetCPUAllocator() : c10::GetAllocator(device.type());
  return {c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes), allocator->allocate(nbytes),
          allocator, true};
}

c10::DispatchKeySet key_set_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

at::Tensor make_view(const c10::Storage& storage, const marshal::TensorRecipe& view,
                     uint64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(storage), key_set_of(storage.device()),
      c10::scalarTypeToTypeMeta(view.dtype));
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(view.sizes, view.strides, static_cast<int64_t>(offset));
  if (view.conj)
    impl->_set_conj(true);
  if (view.neg)
    impl->_set_neg(true);
  if (view.wrapped)
    impl->set_wrapped_number(true);
  return tensor;
}

bool is_same_view(const at::Tensor& tensor, const marshal::TensorRecipe& view, uint64_t offset) {
  if (!tensor.defined() || view.wrapped)
    return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.storage_offset() == static_cast<int64_t>(offset) && !impl.is_wrapped_number() &&
         impl.dtype() == c10::scalarTypeToTypeMeta(view.dtype) && impl.sizes() == view.sizes &&
         impl.strides() == view.strides && impl.is_conj() == view.conj && impl.is_neg() == view.neg;
}

// Bytes of a storage as a tensor, for copies.
at::Tensor bytes_of(const c10::Storage& storage, uint64_t offset, uint64_t length) {
  marshal::TensorRecipe view;
  view.dtype = at::kByte;
  view.sizes = {static_cast<int64_t>(length)};
  view.strides = {1};
  return make_view(storage, view, offset);
}

// True if the upload fills the whole storage and is in the same kind of memory.
bool becomes_the_storage(const Entry& entry, const Staging& staging) {
  return staging.length() == entry.nbytes && entry.device.is_cpu();
}

uint64_t whole_units(uint64_t nbytes) {
  constexpr uint64_t kUnit = 512;  // as CUDA's allocator, and the client's snapshots
  return (nbytes + kUnit - 1) / kUnit * kUnit;
}

// Without the peak: MemoryUse::note_peaks().
void change(c10::CachingAllocator::Stat& stat, uint64_t before, uint64_t after) {
  const int64_t peak = stat.peak;
  if (after >= before)
    stat.increase(after - before);
  else
    stat.decrease(before - after);
  stat.peak = peak;
}

[[noreturn]] void refuse_view(const Entry& entry, const marshal::TensorRecipe& view,
                              uint64_t offset) {
  throw Refused("a view that needs " + std::to_string(view.extent) + " bytes behind element " +
                std::to_string(offset) + " is not inside its storage of " +
                std::to_string(entry.nbytes) + " bytes");
}

}  // namespace

bool covers(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset) {
  return offset == 0 && view.is_dense && view.extent == entry.nbytes;
}

bool is_view_of(const Entry& entry, const at::Tensor& view, uint64_t offset) {
  return view.storage().unsafeGetStorageImpl() == entry.storage.unsafeGetStorageImpl() &&
         view.storage_offset() == static_cast<int64_t>(offset);
}

Entry& StorageTable::find(uint64_t name) {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw ProtocolError("no storage has the name " + std::to_string(name));
  return *found->second;
}

Entry& StorageTable::make(uint64_t name, uint64_t nbytes, c10::Device device, uint8_t number,
                          Origin made) {
  if (name == 0)
    throw ProtocolError("name 0 is never valid");
  wire::check_limit("storages of a session", entries_.size() + 1, limits_.storages);
  wire::check_limit("bytes of a storage", nbytes, wire::kMaxStorageBytes);
  auto [place, is_new] = entries_.emplace(name, nullptr);
  if (!is_new)
    throw ProtocolError("the name " + std::to_string(name) + " is taken");
  place->second = take_entry();
  Entry& entry = *place->second;
  entry.made = made;
  entry.device = device;
  entry.number = number;
  entry.stream = streams_.current(number);
  use_[number].storages.increase(1);
  set_bytes(entry, nbytes);
  return entry;
}

void StorageTable::free(uint64_t name) {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw ProtocolError("no storage has the name " + std::to_string(name));
  Entry& entry = *found->second;
  leave_to_replies(entry);
  set_bytes(entry, 0);
  use_[entry.number].storages.decrease(1);
  set_held(entry, 0);
  set_missing(entry, nullptr);
  if (!uploading_.empty())
    std::erase(uploading_, &entry);
  if (spare_.size() < kMostSpare) {
    entry = Entry();
    spare_.push_back(std::move(found->second));
  }
  entries_.erase(found);
}

std::unique_ptr<Entry> StorageTable::take_entry() {
  if (spare_.empty())
    return std::make_unique<Entry>();
  std::unique_ptr<Entry> entry = std::move(spare_.back());
  spare_.pop_back();
  return entry;
}

void StorageTable::set_missing(Entry& entry, Cause cause) {
  missing_ += (cause != nullptr ? 1 : 0);
  missing_ -= (entry.missing != nullptr ? 1 : 0);
  entry.missing = std::move(cause);
}

void StorageTable::leave_to_replies(Entry& entry) {
  if (entry.is_being_sent())
    entry.sending->count(held_by(entry));
  entry.sending.reset();
}

std::shared_ptr<const void> StorageTable::reply_token(Entry& entry, uint64_t copied) {
  if (copied != 0) {
    check_room(entry, copied, used_bytes());
    auto copy = std::make_shared<ReplyMemory>(limits_.others);
    copy->count(copied);
    return copy;
  }
  if (entry.sending == nullptr)
    entry.sending = std::make_shared<ReplyMemory>(limits_.others);
  return entry.sending;
}

void StorageTable::replace_memory(Entry& entry, c10::Storage memory) {
  entry.last_view.reset();
  leave_to_replies(entry);
  entry.storage = std::move(memory);
}

void StorageTable::set_bytes(Entry& entry, uint64_t nbytes) {
  total_bytes_ += nbytes - entry.nbytes;
  MemoryUse& use = use_[entry.number];
  change(use.bytes, entry.nbytes, nbytes);
  change(use.reserved, whole_units(entry.nbytes), whole_units(nbytes));
  if (entry.storage)
    use.note_peaks();
  entry.nbytes = nbytes;
}

void StorageTable::allocate_all(uint8_t device) {
  for (auto& [name, entry] : entries_)
    if (entry->number == device && entry->missing == nullptr && entry->upload == nullptr)
      ensure_memory(*entry);
}

void StorageTable::check_room(const Entry& entry, uint64_t nbytes, uint64_t others) const {
  const uint64_t room = limits_.bytes - std::min(others, limits_.bytes);
  if (nbytes <= room)
    return;
  const MemoryShortage shortage{nbytes, limits_.bytes, room, others, others};
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, describe_shortage(entry.device.is_cpu() ? "CPU" : "CUDA", shortage),
      " The bytes of a session are limited to ", limits_.bytes, " (serve --max-memory)");
}

void StorageTable::hold(Entry& entry, uint64_t nbytes) {
  if (nbytes > entry.held)
    check_room(entry, nbytes, used_bytes() - entry.held);
  set_held(entry, nbytes);
}

void StorageTable::set_held(Entry& entry, uint64_t nbytes) {
  held_bytes_ += nbytes - entry.held;
  entry.held = nbytes;
  if (limits_.bytes != UINT64_MAX)
    uploads_.memory().set_room(limits_.bytes - std::min(used_bytes(), limits_.bytes));
}

void StorageTable::ensure_memory(Entry& entry) {
  if (entry.storage)
    return;
  hold(entry, entry.nbytes);
  const Streams::Scope scope(streams_, entry.number, entry.stream);
  try {
    entry.storage = allocate(entry.nbytes, entry.device);
  } catch (...) {
    hold(entry, 0);
    throw;
  }
  use_[entry.number].note_peaks();
}

at::Tensor StorageTable::resolve(Entry& entry, const marshal::TensorRecipe& view, uint64_t offset) {
  uint64_t begin = 0;
  uint64_t end = 0;
  if (__builtin_mul_overflow(offset, uint64_t{c10::elementSize(view.dtype)}, &begin) ||
      __builtin_add_overflow(begin, view.extent, &end) || end > INT64_MAX)
    refuse_view(entry, view, offset);
  // A tensor without elements needs no memory, whatever its offset.
  const uint64_t present = entry.storage ? entry.storage.nbytes() : entry.nbytes;
  if (view.extent != 0 && end > present)
    refuse_view(entry, view, offset);
  // A repeated argument needs a tensor object of its own, because kernels compare objects. And a
  // kernel may have given the last view another storage.
  if (!view.is_repeat && is_same_view(entry.last_view, view, offset) &&
      entry.last_view.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
          entry.storage.unsafeGetStorageImpl())
    return entry.last_view;
  ensure_memory(entry);
  at::Tensor tensor = make_view(entry.storage, view, offset);
  if (!view.wrapped)
    entry.last_view = tensor;
  return tensor;
}

void StorageTable::adopt(Entry& entry, at::Tensor tensor) {
  hold(entry, tensor.storage().nbytes());
  entry.storage = tensor.storage();
  entry.device = entry.storage.device();
  set_bytes(entry, entry.storage.nbytes());
  entry.last_view = std::move(tensor);
}

void StorageTable::resize(Entry& entry, uint64_t nbytes) {
  settle(entry);
  const uint64_t kept = std::min(present_bytes(entry), nbytes);
  const bool has_values = entry.storage && kept != 0;
  const uint64_t held = entry.held;
  c10::Storage resized;  // stays without memory if no bytes are kept
  hold(entry, has_values ? nbytes : 0);
  if (has_values) {
    try {
      resized = copy_memory(entry, nbytes, kept);
    } catch (...) {
      set_held(entry, held);
      throw;
    }
  }
  replace_memory(entry, std::move(resized));
  set_bytes(entry, nbytes);
}

void StorageTable::settle_growth(Entry& entry, bool is_kept) {
  if (is_kept) {
    hold(entry, held_by(entry));
    entry.last_view.reset();
    return set_bytes(entry, entry.storage.nbytes());
  }
  if (!entry.storage || entry.storage.nbytes() <= entry.nbytes)
    return;
  try {
    resize(entry, entry.nbytes);
  } catch (const std::exception&) {
    set_bytes(entry, entry.storage.nbytes());  // no memory for the copy: keep the new size
  }
}

void StorageTable::check_range(const Entry& entry, uint64_t offset, uint64_t length) const {
  const uint64_t bytes = present_bytes(entry);
  if (offset > bytes || length > bytes - offset) {
    throw ProtocolError("an upload of " + std::to_string(length) + " bytes at " +
                        std::to_string(offset) + " is not inside its storage of " +
                        std::to_string(entry.nbytes) + " bytes");
  }
}

void StorageTable::write(Entry& entry, uint64_t offset, std::span<const std::byte> bytes) {
  check_range(entry, offset, bytes.size());
  settle(entry);
  if (bytes.empty())
    return;
  auto* const from = const_cast<std::byte*>(bytes.data());  // NOLINT: from_blob has no const form
  write_bytes(entry, offset, at::from_blob(from, {static_cast<int64_t>(bytes.size())}, at::kByte));
}

void StorageTable::write_bytes(Entry& entry, uint64_t offset, const at::Tensor& bytes) {
  prepare_write(entry);
  ensure_memory(entry);
  if (entry.device.is_cpu()) {
    std::memcpy(static_cast<std::byte*>(entry.storage.mutable_data()) + offset,
                bytes.const_data_ptr(), bytes.nbytes());
    return;
  }
  // Does not wait if the bytes are in pinned memory, which then stays until the copy is done.
  bytes_of(entry.storage, offset, bytes.nbytes()).copy_(bytes, bytes.is_pinned());
}

void StorageTable::expect_upload(Entry& entry, uint64_t offset, std::shared_ptr<Staging> staging) {
  check_range(entry, offset, staging->length());
  settle(entry);
  write_arrived();
  if (becomes_the_storage(entry, *staging)) {
    hold(entry, UploadMemory::bytes_behind(staging->memory()));
  } else {
    hold(entry, held_by(entry));
    ensure_memory(entry);  // now, so that the upload fails and not a later call
    uploads_.copy_in_parts(*staging);
  }
  entry.upload = std::move(staging);
  entry.upload_offset = offset;
  entry.upload_stream = streams_.current(entry.number);
  entry.upload_written = 0;
  uploading_.push_back(&entry);
}

void StorageTable::settle_stream(uint8_t device, uint64_t stream) {
  for (Entry* const entry : uploading_)
    if (entry->number == device && entry->upload_stream == stream)
      settle(*entry);
}

void StorageTable::record_stream(Entry& entry, uint8_t device, uint64_t stream) {
  settle(entry);
  if (entry.missing != nullptr)
    return;
  try {
    ensure_memory(entry);
  } catch (const c10::OutOfMemoryError&) {
    return;  // the call that uses the storage tries again, and gets the error
  }
  streams_.record_stream(entry.storage.data_ptr(), device, stream);
}

void StorageTable::write_arrived() {
  std::erase_if(uploading_, [this](Entry* entry) {
    if (!entry->upload)
      return true;
    try {
      if (uploads_.has_arrived(*entry->upload))
        finish_upload(*entry);
      else if (!becomes_the_storage(*entry, *entry->upload))
        write_upload(*entry, uploads_.arrived_bytes(*entry->upload));
    } catch (const c10::Error&) {
      // The next call that uses the storage tries again, and gets the error.
    }
    return entry->upload == nullptr;
  });
}

// The part of an upload that has arrived and is not in the storage yet.
void StorageTable::write_upload(Entry& entry, uint64_t arrived) {
  if (arrived <= entry.upload_written)
    return;
  const uint64_t length = arrived - entry.upload_written;
  const Streams::Scope scope(streams_, entry.number, entry.upload_stream);
  write_bytes(entry, entry.upload_offset + entry.upload_written,
              bytes_of(entry.upload->memory(), entry.upload_written, length));
  entry.upload_written = arrived;
}

void StorageTable::finish_upload(Entry& entry) {
  if (!becomes_the_storage(entry, *entry.upload)) {
    while (entry.upload_written < entry.upload->length())
      write_upload(entry, uploads_.wait_for_more(*entry.upload, entry.upload_written));
    entry.upload.reset();
    return streams_.join(entry.number, entry.upload_stream);
  }
  uploads_.wait_for_more(*entry.upload, entry.nbytes);
  const std::shared_ptr<Staging> staging = std::move(entry.upload);
  if (staging->length() == 0)
    return;
  replace_memory(entry, staging->take_memory());
  use_[entry.number].note_peaks();
}

void StorageTable::detach_from_replies(Entry& entry) {
  const uint64_t nbytes = entry.storage.nbytes();
  check_room(entry, nbytes, used_bytes());
  replace_memory(entry, copy_memory(entry, nbytes, nbytes));
  set_held(entry, nbytes);
}

// The memory belongs to the storage's own stream. The current stream copies, after the work that
// the other has for that memory, and neither block is reused before the copy is done.
c10::Storage StorageTable::copy_memory(Entry& entry, uint64_t nbytes, uint64_t kept) {
  c10::Storage copy;
  {
    const Streams::Scope scope(streams_, entry.number, entry.stream);
    copy = allocate(nbytes, entry.device);
  }
  const uint8_t current = streams_.current(entry.number);
  streams_.join(entry.number, entry.stream);
  bytes_of(copy, 0, kept).copy_(bytes_of(entry.storage, 0, kept));
  streams_.record_stream(copy.data_ptr(), entry.number, current);
  streams_.record_stream(entry.storage.data_ptr(), entry.number, current);
  return copy;
}

}  // namespace torch_remote::server
