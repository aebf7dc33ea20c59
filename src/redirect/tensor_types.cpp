#include "redirect/tensor_types.h"

#include <string>
#include <string_view>

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/callers.h"
#include "redirect/redirect.h"
#include "redirect/ref.h"
#include "redirect/state.h"
#include "redirect/unary.h"

namespace torch_remote::redirect {
namespace {

Unary instance_check;
Unary default_type;

const char* name_of(PyObject* type) {
  return reinterpret_cast<PyTypeObject*>(type)->tp_name;
}

bool is_cuda_type(PyObject* type) {
  return PyType_Check(type) && std::string_view(name_of(type)).starts_with("torch.cuda.");
}

bool stands_in(c10::DeviceType type) {
  return reads_as() != c10::DeviceType::MPS && situation().policy != Policy::kOff &&
         type != c10::DeviceType::CPU && type != c10::DeviceType::CUDA &&
         type == accelerator_type();
}

// isinstance(tensor, type) for a type of CUDA and a tensor of the accelerator.
bool matches(PyObject* type, const at::Tensor& tensor) {
  const Ref dtype = Ref::steal(PyObject_GetAttrString(type, "dtype"));
  const Ref layout = Ref::steal(PyObject_GetAttrString(type, "layout"));
  if (!dtype || !layout || !THPDtype_Check(dtype.get()) || !THPLayout_Check(layout.get())) {
    PyErr_Clear();
    return false;
  }
  return reinterpret_cast<THPDtype*>(dtype.get())->scalar_type == tensor.scalar_type() &&
         reinterpret_cast<THPLayout*>(layout.get())->layout == tensor.layout();
}

PyObject* check_instance(PyObject* self, PyObject* object) {
  HANDLE_TH_ERRORS
  if (is_cuda_type(self) && THPVariable_Check(object)) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (stands_in(tensor.device().type()) && matches(self, tensor))
      Py_RETURN_TRUE;
  }
  return instance_check.call_original(self, object);
  END_HANDLE_TH_ERRORS
}

void let_no_device_follow(bool on) {
  Situation changed = situation();
  if (changed.policy == Policy::kForeign || changed.policy == Policy::kForeignDefault)
    changed.policy = on ? Policy::kForeignDefault : Policy::kForeign;
  set_situation(changed);
}

PyObject* set_default_type(PyObject* self, PyObject* type) {
  HANDLE_TH_ERRORS
  const bool is_redirected = situation().policy != Policy::kOff && is_cuda_type(type) &&
                             may_redirect({Kind::kCuda, kNoIndex});
  const Ref used = is_redirected ? cpu_twin_of(name_of(type)) : Ref::share(type);
  if (!used)
    return nullptr;
  Ref done = Ref::steal(default_type.call_original(self, used.get()));
  if (done)
    let_no_device_follow(is_redirected);
  return done.release();
  END_HANDLE_TH_ERRORS
}

}  // namespace

Ref cpu_twin_of(std::string_view type) {
  for (const std::string_view prefix : {"torch.", "cuda.", "mps."})
    type.remove_prefix(type.starts_with(prefix) ? prefix.size() : 0);
  const bool is_sparse = type.starts_with("sparse.");
  type.remove_prefix(is_sparse ? 7 : 0);
  const Ref module = Ref::steal(PyImport_ImportModule(is_sparse ? "torch.sparse" : "torch"));
  const std::string name(type);
  return module ? Ref::steal(PyObject_GetAttrString(module.get(), name.c_str())) : Ref();
}

bool hook_instance_check(PyObject* descriptor) {
  return instance_check.hook(descriptor, check_instance);
}

bool hook_default_type(PyObject* function) {
  return default_type.hook(function, set_default_type);
}

void unhook_tensor_types() {
  instance_check.unhook();
  default_type.unhook();
}

}  // namespace torch_remote::redirect
