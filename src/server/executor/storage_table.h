#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include "base/hash.h"
#include "marshal/plan.h"
#include "server/bytes/uploads.h"
#include "server/device/streams.h"
#include "server/executor/entry.h"
#include "server/executor/failures.h"
#include "server/executor/storage_account.h"

namespace torch_remote::server {

// The storages of a session, by the client's names. Confined to the executor thread, which is in
// inference mode. Entries do not move.
class StorageTable {
 public:
  StorageTable(Uploads& uploads, Streams& streams, StorageLimits limits = {})
      : uploads_(uploads), streams_(streams), account_(uploads.memory(), std::move(limits)) {}

  // Throw ProtocolError: name 0, an unknown name, a name in use, too many storages.
  Entry& find(uint64_t name);
  // `made`: the message that mentions it first.
  Entry& make(uint64_t name, uint64_t nbytes, c10::Device device, uint8_t number, Origin made);
  void free(uint64_t name);

  // A storage without a name, for the time in which a program runs. The number of those is limited
  // by the program.
  struct FreeTemporary {
    StorageTable* table = nullptr;

    void operator()(Entry* entry) const { table->end(std::unique_ptr<Entry>(entry)); }
  };

  using Temporary = std::unique_ptr<Entry, FreeTemporary>;

  Temporary make_temporary(uint64_t nbytes, c10::Device device, uint8_t number, Origin made);

  // Takes value and memory from a storage that is made anew; it is not missing afterwards.
  void release(Entry& entry);

  bool contains(uint64_t name) const { return entries_.find(name) != entries_.end(); }

  MissingStorages& missing() { return missing_; }

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
  // copy of so many bytes, which is made next, as it must be of a pinned storage. Throws
  // OutOfMemoryError.
  std::shared_ptr<const void> reply_token(Entry& entry, uint64_t copied);

  // Call before the memory is used: a pending upload of the storage is waited for and written. And
  // before it is changed: if a reply is still being sent from it, the storage moves to a copy.
  void prepare(Entry& entry, bool is_written) {
    settle(entry);
    if (is_written)
      prepare_write(entry);
  }

  // Takes a call's output: a plain strided tensor at offset 0 that owns its storage alone. Once for
  // each entry.
  void adopt(Entry& entry, at::Tensor tensor);
  // Throws OutOfMemoryError, and Refused for a pinned storage that has no room for so many bytes.
  void resize(Entry& entry, uint64_t nbytes);
  // After a kernel has resized a view of the storage: it takes the new size, or goes back to the
  // old one.
  void settle_growth(Entry& entry, bool is_kept);
  void write(Entry& entry, uint64_t offset, std::span<const std::byte> bytes);
  void expect_upload(Entry& entry, uint64_t offset, std::shared_ptr<Staging> staging);
  // Writes what has arrived of uploads, so that staging holds only bytes still on the way.
  void write_arrived();

  StorageAccount& account() { return account_; }

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
  // Counts a new storage, and what a freed one had.
  void begin(Entry& entry, uint64_t nbytes, c10::Device device, uint8_t number, Origin made);
  void end(std::unique_ptr<Entry> entry);
  // The storage loses its memory. Replies that are sent from it keep it.
  static void leave_to_replies(Entry& entry);
  void ensure_memory(Entry& entry);
  void write_bytes(Entry& entry, uint64_t offset, const at::Tensor& bytes);
  void write_upload(Entry& entry, uint64_t arrived);
  void finish_upload(Entry& entry);
  void detach_from_replies(Entry& entry);
  // Memory of `nbytes` with the first `kept` bytes of the storage, which is about to lose its own.
  c10::Storage copy_memory(Entry& entry, uint64_t nbytes, uint64_t kept);
  static void replace_memory(Entry& entry, c10::Storage memory);
  void resize_in_place(Entry& entry, const Pin& pin, uint64_t nbytes);
  void check_range(const Entry& entry, uint64_t offset, uint64_t length) const;

  Uploads& uploads_;
  Streams& streams_;
  StorageAccount account_;
  ska::flat_hash_map<uint64_t, std::unique_ptr<Entry>, NameHash> entries_;
  std::vector<std::unique_ptr<Entry>> spare_;  // of freed storages, to be used again
  std::vector<Entry*> uploading_;              // entries that expect, or have expected, an upload
  MissingStorages missing_;
};

}  // namespace torch_remote::server
