#pragma once

#include <c10/core/StorageImpl.h>

namespace torch_remote::client {

// Grows or shrinks a remote storage and keeps the bytes that fit.
void resize_storage(c10::StorageImpl& storage, uint64_t nbytes);

// Whether the storage has a record. One that Python made over a part of another storage has none.
bool owns_record(const c10::StorageImpl& storage);

// Takes over the size of a storage that the server has resized already.
void take_size(c10::StorageImpl& storage, uint64_t nbytes);

}  // namespace torch_remote::client
