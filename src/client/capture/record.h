#pragma once

#include <atomic>
#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace torch_remote::client {

// The client's record of one storage: DataPtr::get_context() of every remote storage.
struct StorageRecord {
  uint64_t name = 0;          // constant while the storage lives
  void* session = nullptr;    // client::Session, constant while the storage lives
  uint8_t server_device = 0;  // constant while the storage lives
  uint8_t stream = 0;         // of the device, current when the storage was made; constant
  std::atomic<uint64_t> address{0};
  std::atomic<uint64_t> nbytes{0};
  std::atomic<bool> announced{false};  // the server has heard of it; changed under the submit lock
  // The first call that used it, and the last 32 bits of the number of that call's thread. 0: none,
  // or the server is known to have it. RecordPool::kToBeWritten: an output of a call that is not
  // written yet.
  std::atomic<uint64_t> made_by{0};
  std::atomic<uint32_t> made_in{0};
  StorageRecord* next = nullptr;  // in free lists

  // Call this when the first call that names the storage is written. Under the submit lock.
  void note_made(uint64_t call, uint64_t thread) {
    announced.store(true, std::memory_order_relaxed);
    made_by.store(call, std::memory_order_relaxed);
    made_in.store(static_cast<uint32_t>(thread), std::memory_order_relaxed);
  }
};

// Finds the record of a remote tensor. `find_slowly` is called when our allocator did not make the
// storage (torch.save wraps our address in a storage of its own).
struct RecordLookup {
  c10::DeleterFnPtr deleter = nullptr;
  StorageRecord* (*find_slowly)(const at::TensorImpl& tensor) = nullptr;
  uint64_t (*generator_name)(const c10::GeneratorImpl& generator) = nullptr;
  // Raises SessionLost if the record's session has ended.
  void (*check_session)(const StorageRecord& record) = nullptr;
};

extern RecordLookup record_lookup;

// The record of a tensor whose storage our allocator made, else null, as for wrappers without a
// storage (Note [Wrapped tensors]).
inline StorageRecord* own_record(const at::TensorImpl& tensor) {
  const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(storage == nullptr))
    return nullptr;
  const c10::DataPtr& pointer = storage->data_ptr();
  return C10_LIKELY(pointer.get_deleter() == record_lookup.deleter)
             ? static_cast<StorageRecord*>(pointer.get_context())
             : nullptr;
}

inline StorageRecord* record_of(const at::TensorImpl& tensor) {
  StorageRecord* record = own_record(tensor);
  return C10_LIKELY(record != nullptr) ? record : record_lookup.find_slowly(tensor);
}

// Where a tensor begins in its record's storage, in elements. In Python a slice of a storage is a
// storage that begins later in the same memory.
inline uint64_t offset_of(const at::TensorImpl& tensor, const StorageRecord& record) {
  const auto begin =
      reinterpret_cast<uint64_t>(tensor.unsafe_storage().unsafeGetStorageImpl()->data());
  const uint64_t ahead = begin - record.address.load(std::memory_order_relaxed);
  const auto offset = static_cast<uint64_t>(tensor.storage_offset());
  if (C10_LIKELY(ahead == 0))
    return offset;
  TORCH_CHECK(ahead % tensor.itemsize() == 0, "a slice of a remote storage that begins at byte ",
              ahead, " cannot be read as ", tensor.dtype());
  return offset + ahead / tensor.itemsize();
}

}  // namespace torch_remote::client
