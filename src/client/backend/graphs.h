#pragma once

namespace torch_remote::client {

// Makes torch.accelerator.Graph (torch 2.12 and later) work on this device. Once, after the backend
// has its name.
void register_graphs();

}  // namespace torch_remote::client
