#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_remote::client {

// Page-aligned host memory that the client may send from without copying it first.
at::HostAllocator* pinned_allocator();
bool is_pinned(const void* data);

}  // namespace torch_remote::client
