#pragma once

#include <string>

namespace torch_remote::server {

// Throws std::invalid_argument, for the user, unless it is auto, cpu, cuda or cuda:n. Does not ask
// whether there is such a device.
void check_device_name(const std::string& wanted);

}  // namespace torch_remote::server
