#pragma once

#include <ATen/core/operator_name.h>

namespace torch_remote::client {

// Makes PrivateUse1 ours. Once for each process; the backend's name is given from Python.
void register_backend();

// Whether register_backend() has made this operator one call, although PyTorch would take it apart.
bool travels(const c10::OperatorName& name);

}  // namespace torch_remote::client
