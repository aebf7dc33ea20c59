#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {

// The arguments of a call: a tuple, and a dict or null. Both are the caller's, so they are copied
// before they are changed. All functions need the GIL.

// The interned names of keywords.
struct Names {
  PyObject* device;
  PyObject* dtype;
  PyObject* generator;
  PyObject* index;
  PyObject* memory_format;
  PyObject* non_blocking;
  PyObject* out;
  PyObject* pin_memory;
  PyObject* type;
};

const Names& names();

// Borrowed; null if it is absent or None.
PyObject* keyword(PyObject* kwargs, PyObject* name);
PyObject* positional(PyObject* args, Py_ssize_t place);

// The argument at a place, or else with a name.
PyObject* argument(PyObject* args, PyObject* kwargs, Py_ssize_t place, PyObject* name);

// Copies with one entry set. Null with a Python error.
Ref with_keyword(PyObject* kwargs, PyObject* name, PyObject* value);
Ref with_positional(PyObject* args, Py_ssize_t place, PyObject* value);

bool is_true(PyObject* object);

}  // namespace torch_remote::redirect
