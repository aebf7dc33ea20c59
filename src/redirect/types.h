#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Hooks constructors (`tp_new`) and getters of torch's types, which stay the same types. All need
// the GIL.

// `kind`: device, generator, stream, storage, tensor, legacy (torch.FloatTensor),
// legacy_cuda (torch.cuda.FloatTensor). False with a Python error.
bool hook_type(PyObject* type, const char* kind);

// `kind`: is_cuda, is_mps; device, generator_device, stream_device, event_device.
bool hook_getter(PyObject* descriptor, const char* kind);

void unhook_types();

}  // namespace torch_remote::redirect
