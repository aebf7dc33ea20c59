#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Whether torch hands calls of this tensor to the __torch_function__ of its class. Hooks that would
// do something else than the call itself then make the call: the handler's own call comes back to
// the hook. Needs the GIL.
bool has_handler(PyObject* tensor);

}  // namespace torch_remote::redirect
