#include "redirect/tensor_types.h"

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/callers.h"
#include "redirect/hooks.h"
#include "redirect/redirect.h"
#include "redirect/ref.h"
#include "redirect/state.h"

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
