#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/methods.h"

namespace torch_remote::redirect {

// Note [A generator decides]
//
// A call with a generator draws where its generator is. torch.Generator() is one of the CPU, and
// under the full policy the tensors of the same program are on the accelerator. So:
//
// - a factory makes its tensor on the generator's device, whatever device the program names:
//   "cpu" and "cuda" mean the same there;
// - what draws for a tensor of the accelerator by a generator of the CPU draws on the CPU, and the
//   numbers are copied to the tensor's device. Torch would refuse. So are those for an `out=`.
//
// Under the policy foreign torch's own rules hold, and for callers that are not listed as full. All
// need the GIL.

// For a factory with this generator. Null without a Python error: the generator has no say.
// `asked` is the device in `kwargs`, if there is one.
PyObject* run_by_generator(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* asked, PyObject* generator);

// Whether the call draws for a tensor of the accelerator by a generator of the CPU.
bool draws_on_host(PyObject* self, PyObject* args, PyObject* kwargs);

// Bodies of hooked functions: torch.multinomial and the like, Tensor.normal_ and the like.
PyObject* run_draw(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs);
PyObject* run_draw_in_place(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs);

}  // namespace torch_remote::redirect
