#pragma once

namespace torch_remote::redirect {

// Factories that C++ and TorchScript call, which pass no Python. Only where torch has no CUDA of
// its own. All need the GIL.

// Kernels under the keys of CUDA and MPS that make the tensor on the device that is used instead,
// and no initialisation of CUDA before they are called.
void install_kernels(bool for_cuda, bool for_mps);
void remove_kernels();

// Device names in TorchScript, which become constants of its graphs when they are compiled.
// This stays for ever, and changes nothing while the redirect is off.
void install_script();

}  // namespace torch_remote::redirect
