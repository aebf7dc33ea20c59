#pragma once

#include <c10/core/StorageImpl.h>

namespace torch_remote::client {

// Grows or shrinks a remote storage; what fits of its bytes is kept.
void resize_storage(c10::StorageImpl& storage, uint64_t nbytes);

// Whether it is a storage of ours, and not one that Python made of a part of one.
bool owns_record(const c10::StorageImpl& storage);

// The server has resized the storage already: the size and the address follow.
void take_size(c10::StorageImpl& storage, uint64_t nbytes);

}  // namespace torch_remote::client
