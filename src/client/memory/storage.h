#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "client/capture/record.h"
#include "client/process/records.h"
#include "wire/signature.h"

namespace torch_remote::client {

// A DataPtr for a new storage of `nbytes` on device `index`. Starts its session if need be. Near
// the limit of the device's memory it waits, and raises OutOfMemoryError.
c10::DataPtr allocate_remote(size_t nbytes, c10::DeviceIndex index);
void delete_record(void* context);

// A record for a new storage, on the device's current stream. `name` 0: the next one.
StorageRecord* make_record(Session& session, uint8_t server_device, c10::DeviceIndex index,
                           uint64_t nbytes, uint64_t name = 0, uint64_t made_by = 0);

// The storage of a record that has none yet.
c10::Storage storage_on(StorageRecord* record, uint64_t nbytes, c10::Device device);
// A tensor over a storage that is already named, at its beginning.
at::Tensor tensor_on(c10::Storage storage, const wire::TensorSpec& spec);

inline at::Tensor tensor_on(StorageRecord* record, const wire::TensorSpec& spec, uint64_t nbytes,
                            c10::Device device) {
  return tensor_on(storage_on(record, nbytes, device), spec);
}

// Finds the record of a storage that our allocator did not make by its address, or makes one if the
// storage is empty or stands for zeros. Refuses wrapped tensors.
StorageRecord* find_record_slowly(const at::TensorImpl& tensor);

// Raises SessionLost if the record's session has ended.
void check_session(const StorageRecord& record);

// Tell the memory history and torch.profiler that a storage was made or freed. Call these only
// while MemoryHistory::is_needed().
void note_made(const StorageRecord& record);
void note_freed(const StorageRecord& record, uint64_t address, uint64_t bytes);

// Grows or shrinks a remote storage and keeps the bytes that fit.
void resize_storage(c10::StorageImpl& storage, uint64_t nbytes);

// Whether the storage has a record. One that Python made over a part of another storage has none.
bool owns_record(const c10::StorageImpl& storage);

// Takes over the size of a storage that the server has resized already.
void take_size(c10::StorageImpl& storage, uint64_t nbytes);

}  // namespace torch_remote::client
