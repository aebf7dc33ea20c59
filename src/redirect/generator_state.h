#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Hooks Generator.set_state, which wants a tensor of the CPU: a file of random states that was
// loaded with map_location="cpu" is on the accelerator under the full policy. False with a Python
// error. Both need the GIL.
bool hook_set_state(PyObject* descriptor);
void unhook_set_state();

}  // namespace torch_remote::redirect
