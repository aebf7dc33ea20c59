#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// What constructors of legacy types do that torch's own cannot on the accelerator. Both return a
// new reference, or null with a Python error; both need the GIL and may throw C++ exceptions.

// torch.FloatTensor(x), torch.cuda.FloatTensor(x): a tensor with the memory of x, whose dtype must
// be that of the type.
PyObject* make_alias(PyTypeObject* type, PyObject* tensor);

// torch.sparse.FloatTensor(indices, values, size), torch.cuda.sparse.FloatTensor(2, 3): by
// torch.sparse_coo_tensor.
PyObject* make_sparse(PyTypeObject* type, PyObject* args, PyObject* device);

}  // namespace torch_remote::redirect
