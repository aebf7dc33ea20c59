#pragma once

#include <vector>

#include <ATen/core/operator_name.h>

namespace torch_remote::server {

// Registers the kernels of marshal/schemas.h, once for the process, and returns their names:
// clients may call them. They find their process group in Groups::current().
std::vector<c10::OperatorName> register_collectives();

}  // namespace torch_remote::server
