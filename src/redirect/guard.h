#pragma once

namespace torch_remote::redirect {

// A device guard for CUDA where torch has none, or one that fails because there is no GPU. C++ code
// that says Tensor::to(kCUDA) asks it for the index; the tensor is then made by our kernels under
// CUDA's key (kernels.h), so no tensor is ever on the device that it names. It counts 0 devices, so
// that the engine of autograd does not use it.
void install_guard();
void remove_guard();

}  // namespace torch_remote::redirect
