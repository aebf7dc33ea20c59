#include "redirect/legacy_types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/hooks.h"
#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

Ref dtype_of(PyTypeObject* type) {
  return Ref::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), names().dtype));
}

// FloatTensor(2, 3) names sizes, and FloatTensor() the size 0; sparse_coo_tensor wants one size.
Ref with_one_size(PyObject* args) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  if (count == 0)
    return Ref::steal(Py_BuildValue("((i))", 0));
  return PyLong_Check(PyTuple_GET_ITEM(args, 0)) ? Ref::steal(PyTuple_Pack(1, args))
                                                 : Ref::share(args);
}

Ref options_of(PyObject* dtype, PyObject* device) {
  const Ref options = with_keyword(nullptr, names().dtype, dtype);
  return options ? with_keyword(options.get(), names().device, device) : Ref();
}

}  // namespace

PyObject* make_alias(PyTypeObject* type, PyObject* tensor) {
  const Ref dtype = dtype_of(type);
  if (!dtype)
    return nullptr;
  const at::Tensor& source = THPVariable_Unpack(tensor);
  if (THPDtype_Check(dtype.get()) &&
      reinterpret_cast<THPDtype*>(dtype.get())->scalar_type == source.scalar_type())
    return THPVariable_Wrap(at::alias(source));
  const Ref found = Ref::steal(PyObject_GetAttr(tensor, names().dtype));
  if (found)
    PyErr_Format(PyExc_TypeError, "%s takes a tensor of %S, and this one is %S: use x.to(%S)",
                 type->tp_name, dtype.get(), found.get(), dtype.get());
  return nullptr;
}

PyObject* make_sparse(PyTypeObject* type, PyObject* args, PyObject* device) {
  const Ref dtype = dtype_of(type);
  const Ref options = dtype ? options_of(dtype.get(), device) : Ref();
  if (!options)
    return nullptr;
  PyObject* const first = positional(args, 0);
  if (first != nullptr && THPVariable_Check(first) && PyTuple_GET_SIZE(args) == 1) {
    const Ref none = Ref::steal(PyTuple_New(0));
    return none ? call_to(first, none.get(), options.get()) : nullptr;
  }
  const Ref changed = with_one_size(args);
  const Ref torch = changed ? Ref::steal(PyImport_ImportModule("torch")) : Ref();
  const Ref make =
      torch ? Ref::steal(PyObject_GetAttrString(torch.get(), "sparse_coo_tensor")) : Ref();
  return make ? PyObject_Call(make.get(), changed.get(), options.get()) : nullptr;
}

}  // namespace torch_remote::redirect
