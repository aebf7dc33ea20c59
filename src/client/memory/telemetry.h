#pragma once

#include "client/session/session.h"
#include "wire/figures.h"

namespace torch_remote::client {

// What NVML on the server tells of a device. Waits once. Raises if it tells nothing.
wire::Telemetry device_telemetry(Session& session, uint8_t device);

}  // namespace torch_remote::client
