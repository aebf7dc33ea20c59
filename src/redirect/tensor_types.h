#pragma once

#include <string_view>

#include <torch/csrc/python_headers.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {

// Note [Types of tensors]
//
// torch.cuda.FloatTensor is a device and a dtype in one name. While something else stands in for
// CUDA, its tensors are instances of these types, and set_default_tensor_type() of such a type
// means the device in use: the dtype becomes torch's default, and no device means the accelerator.

// torch.FloatTensor for "torch.cuda.FloatTensor" or its own name, torch.sparse.FloatTensor for
// "torch.cuda.sparse.FloatTensor"; null with a Python error.
Ref cpu_twin_of(std::string_view type);

// Hooks `__instancecheck__` of the types' own type. Both return false with a Python error.
bool hook_instance_check(PyObject* descriptor);

// Hooks torch._C._set_default_tensor_type.
bool hook_default_type(PyObject* function);

void unhook_tensor_types();

}  // namespace torch_remote::redirect
