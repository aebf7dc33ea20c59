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

namespace torch_remote::redirect {
namespace {

struct Unary {
  PyMethodDef* definition = nullptr;
  PyCFunction original = nullptr;
};

Unary instance_check;
Unary default_type;

constexpr std::string_view kCudaPrefix = "torch.cuda.";

bool is_cuda_type(PyObject* type) {
  return PyType_Check(type) &&
         std::string_view(reinterpret_cast<PyTypeObject*>(type)->tp_name).starts_with(kCudaPrefix);
}

bool stands_in(c10::DeviceType type) {
  return situation().policy != Policy::kOff && type != c10::DeviceType::CPU &&
         type != c10::DeviceType::CUDA && type == accelerator_type();
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
  return instance_check.original(self, object);
  END_HANDLE_TH_ERRORS
}

// The type of the CPU with the same dtype: torch.FloatTensor for torch.cuda.FloatTensor.
Ref twin_of(PyObject* type) {
  const std::string name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  const Ref torch = Ref::steal(PyImport_ImportModule("torch"));
  return torch ? Ref::steal(PyObject_GetAttrString(torch.get(), name.c_str() + kCudaPrefix.size()))
               : Ref();
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
  const Ref used = is_redirected ? twin_of(type) : Ref::share(type);
  if (!used)
    return nullptr;
  Ref done = Ref::steal(default_type.original(self, used.get()));
  if (done)
    let_no_device_follow(is_redirected);
  return done.release();
  END_HANDLE_TH_ERRORS
}

bool hook(Unary& unary, PyMethodDef* definition, PyCFunction function) {
  if (definition == nullptr || definition->ml_flags != METH_O) {
    PyErr_SetString(PyExc_TypeError, "this function does not take one argument");
    return false;
  }
  if (unary.definition != nullptr)
    return true;
  unary = {definition, definition->ml_meth};
  definition->ml_meth = function;
  return true;
}

}  // namespace

bool hook_instance_check(PyObject* descriptor) {
  const bool is_method = Py_TYPE(descriptor) == &PyMethodDescr_Type;
  return hook(instance_check,
              is_method ? reinterpret_cast<PyMethodDescrObject*>(descriptor)->d_method : nullptr,
              check_instance);
}

bool hook_default_type(PyObject* function) {
  const bool is_builtin = PyCFunction_Check(function);
  return hook(default_type,
              is_builtin ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml : nullptr,
              set_default_type);
}

void unhook_tensor_types() {
  for (Unary* const unary : {&instance_check, &default_type}) {
    if (unary->definition != nullptr)
      unary->definition->ml_meth = unary->original;
    *unary = {};
  }
}

}  // namespace torch_remote::redirect
