#pragma once

#include <ATen/core/operator_name.h>

namespace torch_remote::server {

// Makes PyTorch know our kernel of marshal::kCopyGenerator, whose name this returns.
c10::OperatorName register_generator_copy();

}  // namespace torch_remote::server
