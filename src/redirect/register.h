#pragma once

namespace torch_remote::redirect {

// Factories that C++ and TorchScript call, which pass no Python. Only where torch has no CUDA of
// its own. All need the GIL.

// Kernels under the keys of CUDA and MPS that make the tensor on the device that is used instead,
// and no initialisation of CUDA before they are called.
void install_kernels(bool for_cuda, bool for_mps);
void remove_kernels();

// A device guard for CUDA where torch has none, or one that fails because there is no GPU. C++ code
// that says Tensor::to(kCUDA) asks it for the index; the tensor is then made by those kernels, so
// no tensor is ever on the device that it names. It counts 0 devices, so that the engine of
// autograd does not use it.
void install_guard();
void remove_guard();

// Device names in TorchScript, which become constants of its graphs when they are compiled.
// This stays for ever, and changes nothing while the redirect is off.
void install_script();

}  // namespace torch_remote::redirect
