#pragma once

#include <atomic>
#include <cstdint>

#include <c10/core/Device.h>

namespace torch_remote::client {

// The device this thread is on. Thread-local, no I/O.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);

// The stream, by number, that this thread's calls on a device go to; 0 is the default one. Note
// [Streams] in wire/streams.h. Thread-local, no I/O.
uint8_t current_stream(c10::DeviceIndex index);
void set_current_stream(c10::DeviceIndex index, uint8_t stream);

// Another stream than a default one was ever made current: looked at before every call.
extern std::atomic<bool> streams_were_used;

inline bool are_streams_used() {
  return streams_were_used.load(std::memory_order_relaxed);
}

}  // namespace torch_remote::client
