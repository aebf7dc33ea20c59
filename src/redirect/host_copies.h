#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {

// Under the full policy x.cpu() stays on the accelerator, so what needs a tensor of the CPU gets a
// copy. Both need the GIL.

bool is_on_accelerator(PyObject* tensor);

// Whether the object is a tensor of the accelerator that the policy would not let leave it.
bool needs_host_copy(PyObject* object);

// A copy on the CPU. Waits. May throw C++ exceptions.
Ref make_host_copy(PyObject* tensor);

// Such a copy where the object needs one, else the object itself.
Ref on_host(PyObject* object);

}  // namespace torch_remote::redirect
