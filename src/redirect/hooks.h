#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/ref.h"

// What hooks need that handle a tensor themselves. All need the GIL.
namespace torch_remote::redirect {

// --- handlers.cpp

// Whether torch hands calls of this tensor to the __torch_function__ of its class. Hooks that would
// do something else than the call itself then make the call: the handler's own call comes back to
// the hook.
bool has_handler(PyObject* tensor);

// --- original_to.cpp: Tensor.to without redirection

void set_original_to(PyCFunctionWithKeywords function);

// `kwargs` may be null. New reference, or null with a Python error.
PyObject* call_to(PyObject* tensor, PyObject* args, PyObject* kwargs);

// --- host_copies.cpp: under the full policy x.cpu() stays on the accelerator, so what needs a
// tensor of the CPU gets a copy

bool is_on_accelerator(PyObject* tensor);

// Whether the object is a tensor of the accelerator that the policy would not let leave it.
bool needs_host_copy(PyObject* object);

// A copy on the CPU. Waits. May throw C++ exceptions.
Ref make_host_copy(PyObject* tensor);

// Such a copy where the object needs one, else the object itself.
Ref on_host(PyObject* object);

}  // namespace torch_remote::redirect
