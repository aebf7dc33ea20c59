#pragma once

namespace torch_remote::client {

// Registers this backend for PrivateUse1. Once for each process; Python sets the backend's name.
void register_backend();

}  // namespace torch_remote::client
