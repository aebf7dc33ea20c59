#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "marshal/recipe.h"
#include "server/bytes/uploads.h"
#include "server/executor/failures.h"

namespace torch_remote::server {

class Pin;

// Memory that only replies use any more: copies made for them, and what a storage had that was
// freed or changed meanwhile. It counts towards serve --max-memory until the client has received
// the bytes. Thread-safe: the connection's threads destroy it.
class ReplyMemory {
 public:
  explicit ReplyMemory(std::shared_ptr<std::atomic<uint64_t>> total) : total_(std::move(total)) {}

  ~ReplyMemory() { total_->fetch_sub(bytes_); }

  ReplyMemory(const ReplyMemory&) = delete;
  ReplyMemory& operator=(const ReplyMemory&) = delete;

  // Once, by the executor.
  void count(uint64_t bytes) {
    bytes_ = bytes;
    total_->fetch_add(bytes);
  }

 private:
  const std::shared_ptr<std::atomic<uint64_t>> total_;
  uint64_t bytes_ = 0;
};

// One storage of the session. Memory is allocated at its first use.
struct Entry {
  c10::Storage storage;  // null: no memory yet
  uint64_t nbytes = 0;   // what it has, or will have
  uint64_t held = 0;     // what of that has memory
  Origin made;           // the message that mentioned it first
  c10::Device device{c10::kCPU};
  uint8_t number = 0;         // the session's number of the device
  uint8_t stream = 0;         // the device's current stream when it was made
  uint8_t upload_stream = 0;  // and when the upload began
  Cause missing;  // why it has no value, mostly null: Note [Missing storages] in execute.h
  std::shared_ptr<Staging> upload;  // to be written before anything else uses the storage
  uint64_t upload_offset = 0;
  uint64_t upload_written = 0;           // bytes of the upload that are in the storage
  bool takes_upload = false;             // the upload's memory becomes the storage's
  std::shared_ptr<ReplyMemory> sending;  // replies that are sent from this memory hold it too
  std::weak_ptr<const Pin> pin;          // Note [Pinned storages]
  at::Tensor last_view;                  // most calls use the same view as the call before

  // No value, and no memory for one.
  bool holds_nothing() const { return !storage && upload == nullptr; }

  bool is_pinned() const { return !pin.expired(); }

  bool is_being_sent() const { return sending != nullptr && sending.use_count() > 1; }
};

// The storages without a value, which is mostly none. Confined to the executor thread.
class MissingStorages {
 public:
  bool any() const { return count_ != 0; }

  void set(Entry& entry, Cause cause) {
    clear(entry);
    entry.missing = std::move(cause);
    ++count_;
  }

  // It has a value.
  void clear(Entry& entry) {
    if (entry.missing == nullptr)
      return;
    entry.missing.reset();
    --count_;
  }

 private:
  uint64_t count_ = 0;
};

// Tensors over the memory of storages. StorageTable::resolve() checks what clients ask for.

// True if the view is the whole storage.
bool covers(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset);
// For a view that a kernel may have resized or set to another storage.
bool is_view_of(const Entry& entry, const at::Tensor& view, uint64_t offset);

at::Tensor make_view(const c10::Storage& storage, const marshal::TensorRecipe& view,
                     uint64_t offset);
// Whether make_view() would make this tensor of its storage. An undefined tensor is none.
bool is_made_as(const at::Tensor& tensor, const marshal::TensorRecipe& view, uint64_t offset);

// Bytes of a storage as a tensor, for copies.
at::Tensor bytes_of(const c10::Storage& storage, uint64_t offset, uint64_t length);

// Note [Pinned storages]
//
// What has been captured, such as a CUDA graph, has addresses in it. So the memory of a storage
// that it uses stays where it is while something holds a Pin of the storage. What else gives a
// storage other memory then works in the memory that it has:
//
//   an upload of the whole storage   is copied into it
//   RESIZE, and a kernel's resize    up to the size that the memory has; beyond it they are refused
//   a write while a reply is sent    the reply has been sent from a copy: make it with for_reply()
//
// Freeing the name frees the memory, pinned or not: a captured thing that may run afterwards holds
// the storage itself, and counts it.
class Pin {
 public:
  explicit Pin(const c10::Storage& storage);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  uint64_t capacity() const { return capacity_; }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  const WeakStorage storage_;
  const uint64_t capacity_;
  const bool was_resizable_;
};

// The storage's memory stays where it is as long as somebody has the result. Call after
// StorageTable::prepare(entry, true) and resolve(): it has memory then, which nobody is sent from.
std::shared_ptr<const Pin> pin(Entry& entry);

// What a reply is sent from: the view, or a copy of it if the storage is pinned.
at::Tensor for_reply(const Entry& entry, at::Tensor view);

}  // namespace torch_remote::server
