#include "redirect/draws.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/callers.h"
#include "redirect/hooks.h"
#include "redirect/methods.h"
#include "redirect/policy.h"
#include "redirect/redirect.h"
#include "redirect/ref.h"
#include "redirect/sites.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

c10::Device device_of_generator(PyObject* generator) {
  return reinterpret_cast<THPGenerator*>(generator)->cdata.device();
}

bool names_device(const Request& request, c10::Device device) {
  return request.kind == kind_of(device.type()) &&
         (request.index == kNoIndex || request.index == device.index());
}

// The first tensor of the accelerator; null if there is none.
PyObject* find_tensor(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (needs_host_copy(self))
    return self;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    if (needs_host_copy(PyTuple_GET_ITEM(args, i)))
      return PyTuple_GET_ITEM(args, i);
  }
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t place = 0;
  while (kwargs != nullptr && PyDict_Next(kwargs, &place, &name, &value) != 0) {
    if (needs_host_copy(value))
      return value;
  }
  return nullptr;
}

// The generator of the call: torch.poisson(x, g) and torch.binomial(n, p, g) take one by place.
// Null if there is none.
PyObject* find_generator(PyObject* args, PyObject* kwargs) {
  for (Py_ssize_t i = PyTuple_GET_SIZE(args); i > 0; --i) {
    if (THPGenerator_Check(PyTuple_GET_ITEM(args, i - 1)))
      return PyTuple_GET_ITEM(args, i - 1);
  }
  PyObject* const named = keyword(kwargs, names().generator);
  return named != nullptr && THPGenerator_Check(named) ? named : nullptr;
}

// The same arguments with tensors of the CPU, and without a device. Null with a Python error.
Ref args_on_host(PyObject* args) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  Ref copy = Ref::steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; copy && i < count; ++i) {
    Ref host = on_host(PyTuple_GET_ITEM(args, i));
    if (!host)
      return {};
    PyTuple_SET_ITEM(copy.get(), i, host.release());
  }
  return copy;
}

// `out` is given instead of the call's own, if it has one.
Ref kwargs_on_host(PyObject* kwargs, PyObject* out) {
  Ref copy = Ref::steal(PyDict_New());
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t place = 0;
  while (copy && kwargs != nullptr && PyDict_Next(kwargs, &place, &name, &value) != 0) {
    if (PyUnicode_Compare(name, names().device) == 0)
      continue;
    const bool is_out = out != nullptr && PyUnicode_Compare(name, names().out) == 0;
    const Ref host = is_out ? Ref::share(out) : on_host(value);
    if (!host || PyDict_SetItem(copy.get(), name, host.get()) != 0)
      return {};
  }
  return copy;
}

// The call with tensors of the CPU; `self` is one already, or no tensor.
Ref draw(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
         PyObject* out = nullptr) {
  note(method.api, {kind_of(accelerator_type())}, c10::Device(c10::DeviceType::CPU),
       Reason::kDrawnOnCpu);
  const Ref here = args_on_host(args);
  const Ref named = here ? kwargs_on_host(kwargs, out) : Ref();
  return named ? Ref::steal(method.original(self, here.get(), named.get())) : Ref();
}

// A tensor of the CPU to be drawn into, with the same strides: the order of the numbers depends on
// them.
Ref make_host_target(const at::Tensor& tensor) {
  return Ref::steal(THPVariable_Wrap(at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(c10::DeviceType::CPU))));
}

// For a call with `out=`. Torch resizes the copy as it would the tensor, and says what is wrong
// with it.
PyObject* draw_into(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                    PyObject* out) {
  if (!needs_host_copy(out))
    return draw(method, self, args, kwargs).release();
  const at::Tensor& tensor = THPVariable_Unpack(out);
  const Ref host = make_host_target(tensor);
  if (!host)
    return nullptr;
  const at::Tensor& target = THPVariable_Unpack(host.get());
  target.set_requires_grad(tensor.requires_grad());
  if (!draw(method, self, args, kwargs, host.get()))
    return nullptr;
  if (target.sizes() != tensor.sizes()) {
    const Ref shape = Ref::steal(PyObject_GetAttrString(host.get(), "shape"));
    if (!shape || !Ref::steal(PyObject_CallMethod(out, "resize_", "(O)", shape.get())))
      return nullptr;
  }
  return PyObject_CallMethod(out, "copy_", "O", host.get());
}

}  // namespace

PyObject* run_by_generator(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* asked, PyObject* generator) {
  if (!THPGenerator_Check(generator))
    return method.original(self, args, kwargs);  // torch says what is wrong
  const c10::Device device = device_of_generator(generator);
  const Request request = read_request(asked);
  const Policy limit = std::min(situation().policy, caller_limit());
  if (request.kind == Kind::kNone) {
    if (device.is_cpu() || limit == Policy::kOff)
      return method.original(self, args, kwargs);
    return call_with_device(method, self, args, kwargs, object_of(device));
  }
  if (request.kind == Kind::kOther || limit != Policy::kFull)
    return nullptr;
  if (names_device(request, device))
    return method.original(self, args, kwargs);
  if (request.kind == Kind::kToggle)
    redirect(request, method.api);  // for its effect
  else
    note(method.api, request, device, Reason::kGenerator);
  return call_with_device(method, self, args, kwargs, object_of(device), asked);
}

bool draws_on_host(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (situation().policy != Policy::kFull)
    return false;
  PyObject* const generator = find_generator(args, kwargs);
  if (generator == nullptr || !device_of_generator(generator).is_cpu())
    return false;
  PyObject* const tensor = find_tensor(self, args, kwargs);
  const Kind named = read_request(keyword(kwargs, names().device)).kind;
  const bool is_elsewhere = named == Kind::kNone ? tensor != nullptr : named != Kind::kOther;
  return is_elsewhere && (tensor == nullptr || !has_handler(tensor)) &&
         caller_limit() == Policy::kFull;
}

PyObject* run_draw(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!draws_on_host(self, args, kwargs))
    return method.original(self, args, kwargs);
  const Ref host = self != nullptr ? on_host(self) : Ref();
  if (self != nullptr && !host)
    return nullptr;
  if (PyObject* const out = keyword(kwargs, names().out); out != nullptr)
    return draw_into(method, host.get(), args, kwargs, out);
  PyObject* place = keyword(kwargs, names().device);
  if (place == nullptr) {
    place = object_of(THPVariable_Unpack(find_tensor(self, args, kwargs)).device());
  } else {
    PyObject* const redirected = redirect(read_request(place), method.api);
    place = redirected == nullptr ? place : redirected;
  }
  const Ref target = Ref::steal(PyTuple_Pack(1, place));
  const Ref drawn = target ? draw(method, host.get(), args, kwargs) : Ref();
  return drawn ? call_to(drawn.get(), target.get(), nullptr) : nullptr;
}

PyObject* run_draw_in_place(const Method& method, PyObject* self, PyObject* args,
                            PyObject* kwargs) {
  if (!draws_on_host(self, args, kwargs) || !needs_host_copy(self))
    return method.original(self, args, kwargs);
  const Ref host = make_host_target(THPVariable_Unpack(self));
  const Ref drawn = host ? draw(method, host.get(), args, kwargs) : Ref();
  return drawn ? PyObject_CallMethod(self, "copy_", "O", drawn.get()) : nullptr;
}

}  // namespace torch_remote::redirect
