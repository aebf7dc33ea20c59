#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Tensor.to without redirection, for hooks that move a tensor themselves. Both need the GIL.
void set_original_to(PyCFunctionWithKeywords function);

// `kwargs` may be null. New reference, or null with a Python error.
PyObject* call_to(PyObject* tensor, PyObject* args, PyObject* kwargs);

}  // namespace torch_remote::redirect
