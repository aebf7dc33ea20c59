#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Hooks builtin functions and methods of torch: `ml_meth` in the PyMethodDef of each is replaced,
// so the function stays the same object, and TorchScript, dynamo and pickle notice nothing.
// All need the GIL.

// `kind` is a name of the table in methods.cpp; `api` is the name in the log. Hooking a function
// twice does nothing the second time. False with a Python error.
bool hook_method(PyObject* function, const char* kind, const char* api);
void unhook_methods();

}  // namespace torch_remote::redirect
