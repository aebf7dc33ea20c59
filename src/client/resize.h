#pragma once

#include <c10/core/StorageImpl.h>

namespace torch_remote::client {

// Grows or shrinks a remote storage; what fits of its bytes is kept.
void resize_storage(c10::StorageImpl& storage, uint64_t nbytes);

// The server has resized the storage already: the size and the address follow.
void take_size(c10::StorageImpl& storage, uint64_t nbytes);

}  // namespace torch_remote::client
