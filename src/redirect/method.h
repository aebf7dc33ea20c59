#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// A hooked function: what it was, and its name in the log.
struct Method {
  PyCFunctionWithKeywords original = nullptr;
  const char* api = nullptr;
};

// What a hooked function does instead. Called with the GIL, may throw C++ exceptions.
using Body = PyObject* (*)(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs);

}  // namespace torch_remote::redirect
