#pragma once

#include <c10/core/Allocator.h>

#include "client/session/records.h"

namespace torch_remote::client {

// A DataPtr for a new storage of `nbytes` on the device `index`, whose session is started if need be.
c10::DataPtr allocate_remote(size_t nbytes, c10::DeviceIndex index);
void delete_record(void* context);

// For storages that our allocator did not make: found by their address, or given a record if they are empty or stand
// for zeros. Refuses wrapped tensors.
StorageRecord* find_record_slowly(const at::TensorImpl& tensor);

}  // namespace torch_remote::client
