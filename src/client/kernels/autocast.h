#pragma once

#include <torch/library.h>

namespace torch_remote::client::kernels {

// Registers what `torch.autocast("remote")` does: the casts of `torch.autocast("cuda")`. `m` is a
// library for aten at AutocastPrivateUse1.
void register_autocast(torch::Library& m);

}  // namespace torch_remote::client::kernels
