#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include "base/name_hash.h"
#include "marshal/plan.h"
#include "server/bytes/uploads.h"
#include "server/device/streams.h"
#include "server/executor/failures.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::server {

// The server refuses what a message asks. The error is the answer, or replaces the call's results;
// the session goes on.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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
  std::shared_ptr<ReplyMemory> sending;  // replies that are sent from this memory hold it too
  at::Tensor last_view;                  // most calls use the same view as the call before

  bool is_being_sent() const { return sending != nullptr && sending.use_count() > 1; }
};

// True if the view is the whole storage.
bool covers(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset);
// For a view that a kernel may have resized or set to another storage.
bool is_view_of(const Entry& entry, const at::Tensor& view, uint64_t offset);

struct StorageLimits {
  uint64_t storages = wire::kMaxStorages;  // more are a ProtocolError
  uint64_t bytes = UINT64_MAX;             // of all together; more are out of memory
  // Bytes that are in no storage and count too: of replies, and of failures.
  std::shared_ptr<std::atomic<uint64_t>> others = std::make_shared<std::atomic<uint64_t>>(0);
};

struct StorageTotals {
  uint64_t storages = 0;
  uint64_t bytes = 0;  // with those that have no memory yet
  uint64_t held = 0;   // bytes that have memory
  uint64_t limit = 0;  // StorageLimits::bytes
};

// What the storages of one device use, whether or not they have memory yet.
struct MemoryUse {
  c10::CachingAllocator::Stat bytes;
  c10::CachingAllocator::Stat reserved;  // the same in whole units of 512 bytes
  c10::CachingAllocator::Stat storages;
  uint64_t ooms = 0;  // calls that found no memory

  // A storage counts for the peaks when it gets its memory, or when somebody asks.
  void note_peaks() {
    bytes.peak = std::max(bytes.peak, bytes.current);
    reserved.peak = std::max(reserved.peak, reserved.current);
  }
};

// The storages of a session, by the client's names. Confined to the executor thread, which is in
// inference mode. Entries do not move.
class StorageTable {
 public:
  StorageTable(Uploads& uploads, Streams& streams, StorageLimits limits = {})
      : uploads_(uploads), streams_(streams), limits_(std::move(limits)) {}

  // Throw ProtocolError: name 0, an unknown name, a name in use, too many storages.
  Entry& find(uint64_t name);
  // `made`: the message that mentions it first.
  Entry& make(uint64_t name, uint64_t nbytes, c10::Device device, uint8_t number, Origin made);
  void free(uint64_t name);

  bool contains(uint64_t name) const { return entries_.find(name) != entries_.end(); }

  // A null cause: it has a value.
  void set_missing(Entry& entry, Cause cause);

  bool has_missing() const { return missing_ != 0; }

  // Note [One resolve]
  //
  // Every tensor that a message passes to PyTorch is made here: the bytes that the view needs are
  // compared with those that its storage has, in checked 64-bit arithmetic. Throws Refused for a
  // view outside its storage, and PyTorch's out-of-memory error at the storage's first use.
  at::Tensor resolve(Entry& entry, const marshal::TensorRecipe& view, uint64_t offset);

  // Puts in the uploads that began on this stream: an event that is recorded next is after them.
  void settle_stream(uint8_t device, uint64_t stream);
  // The stream uses the storage; its memory is not reused before that is done.
  void record_stream(Entry& entry, uint8_t device, uint64_t stream);

  // For a reply, to hold until it is sent: from the storage's memory, or (`copied` is not 0) from a
  // copy of so many bytes, which is made next. Throws OutOfMemoryError.
  std::shared_ptr<const void> reply_token(Entry& entry, uint64_t copied);

  // Call before the memory is used: a pending upload of the storage is waited for and written. And
  // before it is changed: if a reply is still being sent from it, the storage moves to a copy.
  void prepare(Entry& entry, bool is_written) {
    settle(entry);
    if (is_written)
      prepare_write(entry);
  }

  // Takes a call's output: a plain strided tensor at offset 0 that owns its storage alone.
  void adopt(Entry& entry, at::Tensor tensor);
  void resize(Entry& entry, uint64_t nbytes);
  // After a kernel has resized a view of the storage: it takes the new size, or goes back to the
  // old one.
  void settle_growth(Entry& entry, bool is_kept);
  void write(Entry& entry, uint64_t offset, std::span<const std::byte> bytes);
  void expect_upload(Entry& entry, uint64_t offset, std::shared_ptr<Staging> staging);
  // Writes what has arrived of uploads, so that staging holds only bytes still on the way.
  void write_arrived();

  StorageTotals totals() const {
    return {entries_.size(), total_bytes_, held_bytes_, limits_.bytes};
  }

  MemoryUse& memory_use(uint8_t device) { return use_[device]; }

  // Gives memory to those storages of the device that have none. Throws OutOfMemoryError.
  void allocate_all(uint8_t device);

 private:
  void settle(Entry& entry) {
    if (entry.upload != nullptr)
      finish_upload(entry);
  }

  void prepare_write(Entry& entry) {
    if (entry.is_being_sent())
      detach_from_replies(entry);
  }

  std::unique_ptr<Entry> take_entry();
  // Throws OutOfMemoryError unless there is room for `nbytes` beside `others`.
  void check_room(const Entry& entry, uint64_t nbytes, uint64_t others) const;
  // Before the storage has memory of that size. Throws OutOfMemoryError.
  void hold(Entry& entry, uint64_t nbytes);

  // Bytes that have memory, in storages and elsewhere.
  uint64_t used_bytes() const { return held_bytes_ + limits_.others->load(); }

  // The storage loses its memory. Replies that are sent from it keep it.
  static void leave_to_replies(Entry& entry);
  void ensure_memory(Entry& entry);
  // Changes what a storage has, without those limits.
  void set_held(Entry& entry, uint64_t nbytes);
  void write_bytes(Entry& entry, uint64_t offset, const at::Tensor& bytes);
  void write_upload(Entry& entry, uint64_t arrived);
  void finish_upload(Entry& entry);
  void detach_from_replies(Entry& entry);
  // Memory of `nbytes` with the first `kept` bytes of the storage, which is about to lose its own.
  c10::Storage copy_memory(Entry& entry, uint64_t nbytes, uint64_t kept);
  static void replace_memory(Entry& entry, c10::Storage memory);
  void set_bytes(Entry& entry, uint64_t nbytes);
  void check_range(const Entry& entry, uint64_t offset, uint64_t length) const;

  Uploads& uploads_;
  Streams& streams_;
  const StorageLimits limits_;
  ska::flat_hash_map<uint64_t, std::unique_ptr<Entry>, NameHash> entries_;
  std::vector<std::unique_ptr<Entry>> spare_;  // of freed storages, to be used again
  std::vector<Entry*> uploading_;              // entries that expect, or have expected, an upload
  std::array<MemoryUse, wire::kMaxDevices> use_;  // by device
  uint64_t total_bytes_ = 0;
  uint64_t held_bytes_ = 0;
  uint64_t missing_ = 0;  // entries without a value
};

}  // namespace torch_remote::server
