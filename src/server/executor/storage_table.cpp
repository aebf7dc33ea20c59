#include "server/executor/storage_table.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "base/error.h"
#include "server/executor/entry.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMostSpare = 1024;

// What there is of a storage: a library's kernel may have made it smaller than it is said to be.
uint64_t present_bytes(const Entry& entry) {
  return entry.storage ? std::min<uint64_t>(entry.nbytes, entry.storage.nbytes()) : entry.nbytes;
}

// How many bytes of the memory limit the storage uses; without memory yet, how many it will use.
uint64_t held_by(const Entry& entry) {
  if (entry.is_pinned())  // it has all of its memory, whatever its size
    return entry.held;
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

// True if the upload fills the whole storage and is in the same kind of memory.
bool can_become(const Entry& entry, const Staging& staging) {
  return staging.length() == entry.nbytes && entry.device.is_cpu() && !entry.is_pinned();
}

[[noreturn]] void refuse_view(const Entry& entry, const marshal::TensorRecipe& view,
                              uint64_t offset) {
  throw Refused("a view that needs " + std::to_string(view.extent) + " bytes behind element " +
                std::to_string(offset) + " is not inside its storage of " +
                std::to_string(entry.nbytes) + " bytes");
}

}  // namespace

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
  account_.check_new(nbytes);
  auto [place, is_new] = entries_.emplace(name, nullptr);
  if (!is_new)
    throw ProtocolError("the name " + std::to_string(name) + " is taken");
  place->second = take_entry();
  begin(*place->second, nbytes, device, number, made);
  return *place->second;
}

StorageTable::Temporary StorageTable::make_temporary(uint64_t nbytes, c10::Device device,
                                                     uint8_t number, Origin made) {
  account_.check_new(nbytes);
  Temporary entry(take_entry().release(), {this});
  begin(*entry, nbytes, device, number, made);
  return entry;
}

void StorageTable::begin(Entry& entry, uint64_t nbytes, c10::Device device, uint8_t number,
                         Origin made) {
  entry.made = made;
  entry.device = device;
  entry.number = number;
  entry.stream = streams_.current(number);
  account_.add(entry);
  account_.set_bytes(entry, nbytes);
}

void StorageTable::free(uint64_t name) {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw ProtocolError("no storage has the name " + std::to_string(name));
  end(std::move(found->second));
  entries_.erase(found);
}

void StorageTable::end(std::unique_ptr<Entry> entry) {
  leave_to_replies(*entry);
  account_.set_bytes(*entry, 0);
  account_.remove(*entry);
  account_.set_held(*entry, 0);
  missing_.clear(*entry);
  if (!uploading_.empty())
    std::erase(uploading_, entry.get());
  if (spare_.size() >= kMostSpare)
    return;
  *entry = Entry();
  spare_.push_back(std::move(entry));
}

void StorageTable::release(Entry& entry) {
  if (entry.upload != nullptr) {
    std::erase(uploading_, &entry);
    entry.upload.reset();
  }
  replace_memory(entry, {});
  account_.set_held(entry, 0);
  missing_.clear(entry);
}

std::unique_ptr<Entry> StorageTable::take_entry() {
  if (spare_.empty())
    return std::make_unique<Entry>();
  std::unique_ptr<Entry> entry = std::move(spare_.back());
  spare_.pop_back();
  return entry;
}

void StorageTable::leave_to_replies(Entry& entry) {
  if (entry.is_being_sent())
    entry.sending->count(held_by(entry));
  entry.sending.reset();
}

std::shared_ptr<const void> StorageTable::reply_token(Entry& entry, uint64_t copied) {
  if (copied != 0) {
    account_.check_room(entry, copied);
    auto copy = std::make_shared<ReplyMemory>(account_.others());
    copy->count(copied);
    return copy;
  }
  check_internal(!entry.is_pinned(), "a reply is sent from a copy of a pinned storage");
  if (entry.sending == nullptr)
    entry.sending = std::make_shared<ReplyMemory>(account_.others());
  return entry.sending;
}

void StorageTable::replace_memory(Entry& entry, c10::Storage memory) {
  entry.last_view.reset();
  leave_to_replies(entry);
  entry.storage = std::move(memory);
}

void StorageTable::allocate_all(uint8_t device) {
  for (auto& [name, entry] : entries_)
    if (entry->number == device && entry->missing == nullptr && entry->upload == nullptr)
      ensure_memory(*entry);
}

void StorageTable::ensure_memory(Entry& entry) {
  if (entry.storage)
    return;
  account_.hold(entry, entry.nbytes);
  const Streams::Scope scope(streams_, entry.number, entry.stream);
  try {
    entry.storage = allocate(entry.nbytes, entry.device);
  } catch (...) {
    account_.hold(entry, 0);
    throw;
  }
  account_.use(entry.number).note_peaks();
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
  if (!view.is_repeat && is_made_as(entry.last_view, view, offset) &&
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
  account_.hold(entry, tensor.storage().nbytes());
  entry.storage = tensor.storage();
  entry.device = entry.storage.device();
  account_.set_bytes(entry, entry.storage.nbytes());
  entry.last_view = std::move(tensor);
}

void StorageTable::resize(Entry& entry, uint64_t nbytes) {
  settle(entry);
  if (const std::shared_ptr<const Pin> pin = entry.pin.lock())
    return resize_in_place(entry, *pin, nbytes);
  const uint64_t kept = std::min(present_bytes(entry), nbytes);
  const bool has_values = entry.storage && kept != 0;
  const uint64_t held = entry.held;
  c10::Storage resized;  // stays without memory if no bytes are kept
  account_.hold(entry, has_values ? nbytes : 0);
  if (has_values) {
    try {
      resized = copy_memory(entry, nbytes, kept);
    } catch (...) {
      account_.set_held(entry, held);
      throw;
    }
  }
  replace_memory(entry, std::move(resized));
  account_.set_bytes(entry, nbytes);
}

void StorageTable::resize_in_place(Entry& entry, const Pin& pin, uint64_t nbytes) {
  if (nbytes > pin.capacity())
    throw Refused("a storage of " + std::to_string(entry.nbytes) + " bytes cannot get " +
                  std::to_string(nbytes) + ": its memory must stay where it is, and has " +
                  std::to_string(pin.capacity()) + " bytes");
  entry.last_view.reset();
  entry.storage.set_nbytes(nbytes);
  account_.set_bytes(entry, nbytes);
}

void StorageTable::settle_growth(Entry& entry, bool is_kept) {
  if (is_kept) {
    account_.hold(entry, held_by(entry));
    entry.last_view.reset();
    return account_.set_bytes(entry, entry.storage.nbytes());
  }
  if (!entry.storage || entry.storage.nbytes() <= entry.nbytes)
    return;
  try {
    resize(entry, entry.nbytes);
  } catch (const std::exception&) {
    account_.set_bytes(entry, entry.storage.nbytes());  // no memory for the copy: keep the new size
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
  entry.takes_upload = can_become(entry, *staging);
  if (entry.takes_upload) {
    account_.hold(entry, UploadMemory::bytes_behind(staging->memory()));
  } else {
    account_.hold(entry, held_by(entry));
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
      else if (!entry->takes_upload)
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
  if (!entry.takes_upload) {
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
  account_.use(entry.number).note_peaks();
}

void StorageTable::detach_from_replies(Entry& entry) {
  const uint64_t nbytes = entry.storage.nbytes();
  account_.check_room(entry, nbytes);
  replace_memory(entry, copy_memory(entry, nbytes, nbytes));
  account_.set_held(entry, nbytes);
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
