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

// What constructors of legacy types do that torch's own cannot on the accelerator. Both return a
// new reference, or null with a Python error; both need the GIL and may throw C++ exceptions.

// torch.FloatTensor(x), torch.cuda.FloatTensor(x): a tensor with the memory of x, whose dtype must
// be that of the type.
PyObject* make_alias(PyTypeObject* type, PyObject* tensor);

// torch.sparse.FloatTensor(indices, values, size), torch.cuda.sparse.FloatTensor(2, 3): by
// torch.sparse_coo_tensor.
PyObject* make_sparse(PyTypeObject* type, PyObject* args, PyObject* device);

}  // namespace torch_remote::redirect
