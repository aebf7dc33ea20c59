#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/hooks.h"
#include "redirect/state.h"

namespace torch_remote::redirect {

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
