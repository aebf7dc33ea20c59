#pragma once

#include <initializer_list>

#include <torch/csrc/python_headers.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {

// The arguments of a call: a tuple, and a dict or null. Both are the caller's: these functions
// change copies. All need the GIL.

// The interned names of keywords.
struct Names {
  PyObject* device;
  PyObject* device_type;
  PyObject* dtype;
  PyObject* generator;
  PyObject* index;
  PyObject* lengths;
  PyObject* memory_format;
  PyObject* non_blocking;
  PyObject* out;
  PyObject* pin_memory;
  PyObject* s;
  PyObject* type;
};

const Names& names();

// Borrowed; null if it is absent or None.
PyObject* keyword(PyObject* kwargs, PyObject* name);
PyObject* positional(PyObject* args, Py_ssize_t place);

// The argument at a place, or else with a name.
PyObject* argument(PyObject* args, PyObject* kwargs, Py_ssize_t place, PyObject* name);

// Whether the arguments are ones of a function whose parameters have these names, of which the
// first `places` may be given by place. If not, the function itself says what is wrong.
bool fit(PyObject* args, PyObject* kwargs, Py_ssize_t places,
         std::initializer_list<PyObject*> parameters);

// Copies with one entry set. Null with a Python error.
Ref with_keyword(PyObject* kwargs, PyObject* name, PyObject* value);
Ref with_positional(PyObject* args, Py_ssize_t place, PyObject* value);

bool is_true(PyObject* object);

}  // namespace torch_remote::redirect
