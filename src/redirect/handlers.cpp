#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/hooks.h"
#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

// torch 2.13 has a function that makes a call without the next handler; older ones do not.
template <typename State>
bool skips_next_handler() {
  if constexpr (requires { State::peek_skip_next(); })
    return State::peek_skip_next();
  else
    return false;
}

// What a class has as __torch_function__ to say that it has none.
PyObject* no_handler() {
  static PyObject* const object = [] {
    const Ref torch = Ref::steal(PyImport_ImportModule("torch._C"));
    const char* const name = "_disabled_torch_function_impl";
    PyObject* const found = torch ? PyObject_GetAttrString(torch.get(), name) : nullptr;
    PyErr_Clear();
    return found;
  }();
  return object;
}

}  // namespace

bool has_handler(PyObject* tensor) {
  using State = at::impl::PythonTorchFunctionTLS;
  PyTypeObject* const type = Py_TYPE(tensor);
  if (THPVariable_CheckTypeExact(type) || State::get_disabled_state() != at::impl::ENABLED ||
      skips_next_handler<State>())
    return false;
  const Ref found =
      Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__torch_function__"));
  PyErr_Clear();
  return found && found.get() != no_handler();
}

}  // namespace torch_remote::redirect
