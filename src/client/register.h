#pragma once

namespace torch_remote::client {

// Makes PrivateUse1 ours. Once for each process; the backend's name is given from Python.
void register_backend();

}  // namespace torch_remote::client
