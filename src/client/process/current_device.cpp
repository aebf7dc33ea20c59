#include "client/process/current_device.h"

#include <array>

#include "wire/limits.h"

namespace torch_remote::client {
namespace {

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<uint8_t, wire::kMaxDevices> streams{};

bool is_known(c10::DeviceIndex index) {
  return index >= 0 && static_cast<size_t>(index) < streams.size();
}

}  // namespace

c10::DeviceIndex current_device() {
  return this_device;
}

void set_current_device(c10::DeviceIndex index) {
  if (index >= 0)
    this_device = index;
}

std::atomic<bool> streams_were_used{false};

uint8_t current_stream(c10::DeviceIndex index) {
  return is_known(index) ? streams[static_cast<size_t>(index)] : uint8_t{0};
}

void set_current_stream(c10::DeviceIndex index, uint8_t stream) {
  if (!is_known(index))
    return;
  streams[static_cast<size_t>(index)] = stream;
  if (stream != 0)
    streams_were_used = true;
}

}  // namespace torch_remote::client
