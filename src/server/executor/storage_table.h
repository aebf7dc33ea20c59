#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include "marshal/plan.h"
#include "server/executor/failures.h"
#include "server/executor/uploads.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::server {

// The server will not do what a message asks; it is answered, or stored in the place of results,
// and the session goes on.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One storage of the session. Memory is allocated when it is first used.
struct Entry {
  c10::Storage storage;  // null: no memory yet
  uint64_t nbytes = 0;   // what it has, or will have
  uint64_t held = 0;     // what of that has memory
  Origin made;           // the message that mentioned it first
  c10::Device device{c10::kCPU};
  Cause
      missing;  // why it has no value; null, mostly: Note [Missing storages] in server/executor/execute.h
  std::shared_ptr<Staging> upload;  // bytes that are to be put in before anything else touches it
  uint64_t upload_offset = 0;
  std::shared_ptr<const void>
      sending;           // others hold it too while replies are sent straight from here
  at::Tensor last_view;  // most calls view a storage as the call before did
};

struct StorageLimits {
  uint64_t storages = wire::kMaxStorages;  // more are a ProtocolError
  uint64_t bytes = UINT64_MAX;             // that they hold together: more are out of memory
};

// The storages of a session, by the names that the client chose. Confined to the executor thread,
// which is in inference mode. Entries stay where they are until they are freed.
class StorageTable {
 public:
  explicit StorageTable(Uploads& uploads, StorageLimits limits = {})
      : uploads_(uploads), limits_(limits) {}

  // Throw ProtocolError: name 0, a name that is not there, one that is there already, too many.
  Entry& find(uint64_t name);
  // `made`: the message that mentions it first.
  Entry& make(uint64_t name, uint64_t nbytes, c10::Device device, Origin made);
  void free(uint64_t name);

  bool contains(uint64_t name) const { return entries_.find(name) != entries_.end(); }

  // Null: it has a value.
  void set_missing(Entry& entry, Cause cause);

  bool has_missing() const { return missing_ != 0; }

  // Note [One resolve]
  //
  // Every tensor that any message gives to PyTorch is made here, and nowhere else: the bytes that
  // the view needs are compared with those that its storage has now, in checked 64-bit arithmetic.
  // Throws Refused for a view that is not inside; PyTorch's out-of-memory error when this is the
  // storage's first use.
  at::Tensor resolve(Entry& entry, const marshal::TensorRecipe& view, uint64_t offset);

  // True when the view is all bytes of the storage.
  static bool covers(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset);

  // Waits for an upload that the storage still expects, and puts it in.
  void settle(Entry& entry) {
    if (entry.upload != nullptr)
      finish_upload(entry);
  }

  // Call before the memory is changed: a reply may still be on its way out of it, and then the
  // storage goes on in a copy.
  void prepare_write(Entry& entry) {
    if (entry.sending != nullptr && entry.sending.use_count() > 1)
      detach_from_replies(entry);
  }

  // Takes a call's output: a plain strided tensor at offset 0, whose storage belongs to it alone.
  void adopt(Entry& entry, at::Tensor tensor);
  void resize(Entry& entry, uint64_t nbytes);
  // After a kernel resized a view of the storage: whether it still is a view of it …
  static bool is_view_of(const Entry& entry, const at::Tensor& view, uint64_t offset);
  // … and then the storage has the size that the kernel gave it, or the one that it had before.
  void keep_growth(Entry& entry);
  void give_growth_back(Entry& entry);
  void write(Entry& entry, uint64_t offset, std::span<const std::byte> bytes);
  void expect_upload(Entry& entry, uint64_t offset, std::shared_ptr<Staging> staging);

  uint64_t size() const { return entries_.size(); }

  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::unique_ptr<Entry> take_entry();
  // Before the storage has memory of that size. Throws OutOfMemoryError.
  void hold(Entry& entry, uint64_t nbytes);
  void ensure_memory(Entry& entry);
  void finish_upload(Entry& entry);
  void settle_arrived();
  void detach_from_replies(Entry& entry);
  static void replace_memory(Entry& entry, c10::Storage memory);
  void set_bytes(Entry& entry, uint64_t nbytes);
  void check_range(const Entry& entry, uint64_t offset, uint64_t length) const;

  Uploads& uploads_;
  const StorageLimits limits_;
  ska::flat_hash_map<uint64_t, std::unique_ptr<Entry>> entries_;
  std::vector<std::unique_ptr<Entry>> spare_;  // of freed storages, to be used again
  std::vector<Entry*> uploading_;              // entries that expect, or have expected, an upload
  uint64_t total_bytes_ = 0;
  uint64_t held_bytes_ = 0;
  uint64_t missing_ = 0;  // entries that have no value
};

}  // namespace torch_remote::server
