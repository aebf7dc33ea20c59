#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Which lines of the user's program made the large tensors that are alive, for errors that say
// where the memory went. Only calls that are hooked are known. All need the GIL.

// The result of a hooked call: noted if it is a new tensor of 1 MiB or more. Without memory for the
// note there is none.
void note_large(PyObject* result) noexcept;
void forget_large_tensors();

// (file, line, function) of the call that made the tensor's memory; None: not known.
PyObject* maker_of(PyObject* tensor);

}  // namespace torch_remote::redirect
