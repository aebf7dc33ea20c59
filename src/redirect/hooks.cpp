#include "redirect/hooks.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/ref.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

PyCFunctionWithKeywords original_to = nullptr;

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

void set_original_to(PyCFunctionWithKeywords function) {
  original_to = function;
}

PyObject* call_to(PyObject* tensor, PyObject* args, PyObject* kwargs) {
  return original_to(tensor, args, kwargs);
}

PyMethodDef* definition_of(PyObject* function) {
  if (PyCFunction_Check(function))
    return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (Py_TYPE(function) == &PyMethodDescr_Type)
    return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  return nullptr;
}

bool is_on_accelerator(PyObject* tensor) {
  const c10::DeviceType type = accelerator_type();
  return type != c10::DeviceType::CPU && THPVariable_Unpack(tensor).device().type() == type;
}

bool needs_host_copy(PyObject* object) {
  return situation().policy == Policy::kFull && object != nullptr && THPVariable_Check(object) &&
         is_on_accelerator(object);
}

Ref make_host_copy(PyObject* tensor) {
  const at::Tensor source = THPVariable_Unpack(tensor);
  at::Tensor copy;
  PyThreadState* const thread = PyEval_SaveThread();
  try {
    copy = source.to(c10::DeviceType::CPU);
  } catch (...) {
    PyEval_RestoreThread(thread);
    throw;
  }
  PyEval_RestoreThread(thread);
  return Ref::steal(THPVariable_Wrap(copy));
}

Ref on_host(PyObject* object) {
  return needs_host_copy(object) ? make_host_copy(object) : Ref::share(object);
}

}  // namespace torch_remote::redirect
