#include "redirect/types.h"

#include <exception>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/callers.h"
#include "redirect/handlers.h"
#include "redirect/original_to.h"
#include "redirect/redirect.h"
#include "redirect/ref.h"
#include "redirect/state.h"
#include "redirect/tensor_types.h"

namespace torch_remote::redirect {
namespace {

// A class made while a type is hooked inherits our function for ever, so originals are kept by
// type and the function is looked up along the bases.
std::unordered_map<PyTypeObject*, newfunc>& originals() {
  static auto* const all = new std::unordered_map<PyTypeObject*, newfunc>;
  return *all;
}

struct Hooked {
  newfunc original = nullptr;
  const char* name = nullptr;  // of the hooked type, which is never freed, as subclasses are
};

Hooked find_hooked(PyTypeObject* type) {
  for (PyTypeObject* each = type; each != nullptr; each = each->tp_base) {
    const auto found = originals().find(each);
    if (found != originals().end())
      return {found->second, each->tp_name};
  }
  return {};
}

newfunc original_of(PyTypeObject* type) {
  return find_hooked(type).original;
}

bool is_off() {
  return situation().policy == Policy::kOff;
}

// torch.device(type, index), torch.device(type=..., index=...).
Request read_device_call(PyObject* args, PyObject* kwargs) {
  Request request = read_request(argument(args, kwargs, 0, names().type));
  PyObject* const index = argument(args, kwargs, 1, names().index);
  if (index == nullptr || request.kind == Kind::kOther)
    return request;
  if (!PyLong_Check(index) || PyBool_Check(index) || request.index != kNoIndex)
    return {Kind::kOther, kNoIndex};
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(index, &overflow);  // -1 if it does not fit
  if (request.kind == Kind::kCpu && value == -1 && overflow == 0)
    return {Kind::kToggle, -1};
  if (value < 0 || value > kMaxIndex)
    return {Kind::kOther, kNoIndex};
  request.index = static_cast<int>(value);
  return request;
}

// With read_as="cuda" programs are told "cuda"; hooks translate it where it is used.
PyObject* shown_to_user(PyObject* device) {
  const c10::Device value = reinterpret_cast<THPDevice*>(device)->device;
  const bool renamed = reads_as_cuda() && !value.is_cpu() && value.type() == accelerator_type() &&
                       !is_called_by_torch();
  return renamed ? object_of({c10::DeviceType::CUDA, value.index()}) : device;
}

// In place of HANDLE_TH_ERRORS where its handler of warnings would cost more than the call.
template <typename Body>
PyObject* with_python_errors(Body&& body) {
  try {
    return body();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

PyObject* new_device(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return with_python_errors([&]() -> PyObject* {
    const Request request = read_device_call(args, kwargs);
    PyObject* const device =
        is_off() || request.kind == Kind::kNone ? nullptr : redirect(request, "torch.device");
    if (device == nullptr)
      return original_of(type)(type, args, kwargs);
    return Ref::share(shown_to_user(device)).release();
  });
}

// Constructors whose `device` is the first argument or a keyword. Only accelerators that are not
// here are replaced: a generator of the CPU stays, and decides where its tensors are made.
PyObject* new_with_device(PyTypeObject* type, PyObject* args, PyObject* kwargs, const char* api) {
  const newfunc original = original_of(type);
  PyObject* const first = positional(args, 0);
  PyObject* const asked = first != nullptr ? first : keyword(kwargs, names().device);
  const Request request = read_request(asked);
  PyObject* const device =
      is_off() || asked == nullptr ? nullptr : redirect(request, api, Policy::kForeign);
  if (device == nullptr)
    return original(type, args, kwargs);
  if (first == nullptr) {
    const Ref changed = with_keyword(kwargs, names().device, device);
    return changed ? original(type, args, changed.get()) : nullptr;
  }
  const Ref changed = with_positional(args, 0, device);
  return changed ? original(type, changed.get(), kwargs) : nullptr;
}

PyObject* new_generator(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  return new_with_device(type, args, kwargs, "torch.Generator");
  END_HANDLE_TH_ERRORS
}

// Without an accelerator, a stream or event without a device is the CPU's.
PyObject* new_stream(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static PyObject* const stream_id = PyUnicode_InternFromString("stream_id");
  const bool names_no_device = positional(args, 0) == nullptr &&
                               keyword(kwargs, names().device) == nullptr &&
                               keyword(kwargs, stream_id) == nullptr;
  if (is_off() || !names_no_device || accelerator_type() != c10::DeviceType::CPU)
    return new_with_device(type, args, kwargs, find_hooked(type).name);
  const Ref changed = with_keyword(kwargs, names().device, object_of({c10::DeviceType::CPU, -1}));
  return changed ? original_of(type)(type, args, changed.get()) : nullptr;
  END_HANDLE_TH_ERRORS
}

// The first argument of a storage is its size.
PyObject* new_storage(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const Request request = read_request(keyword(kwargs, names().device));
  PyObject* const device =
      is_off() ? nullptr : redirect(request, "torch.UntypedStorage", Policy::kForeign);
  const newfunc original = original_of(type);
  if (device == nullptr)
    return original(type, args, kwargs);
  const Ref changed = with_keyword(kwargs, names().device, device);
  return changed ? original(type, args, changed.get()) : nullptr;
  END_HANDLE_TH_ERRORS
}

bool shares_memory(PyObject* args) {
  PyObject* const first = positional(args, 0);
  if (first == nullptr)
    return false;
  return THPVariable_Check(first) ||
         std::string_view(Py_TYPE(first)->tp_name).find("Storage") != std::string_view::npos;
}

// Makes a tensor of the CPU and moves it.
PyObject* make_and_move(newfunc make, PyTypeObject* type, PyObject* args, const Request& request,
                        const char* api) {
  Ref tensor = Ref::steal(make(type, args, nullptr));
  PyObject* const device = tensor ? redirect(request, api) : nullptr;
  if (device == nullptr)
    return tensor.release();
  const Ref target = Ref::steal(PyTuple_Pack(1, device));
  return target ? call_to(tensor.get(), target.get(), nullptr) : nullptr;
}

// torch.Tensor(2, 3), torch.Tensor([1, 2], device="cuda"): not its subclasses.
PyObject* new_tensor(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const newfunc original = original_of(type);
  const Request request = read_request(keyword(kwargs, names().device));
  const bool is_hooked_itself = originals().count(type) != 0;
  const bool only_device = kwargs == nullptr || (PyDict_GET_SIZE(kwargs) == 1 &&
                                                 PyDict_Contains(kwargs, names().device) == 1);
  if (is_off() || !is_hooked_itself || shares_memory(args) || !only_device ||
      !may_redirect(request))
    return original(type, args, kwargs);
  return make_and_move(original, type, args, request, "torch.Tensor");
  END_HANDLE_TH_ERRORS
}

// torch.FloatTensor(2, 3).
PyObject* new_legacy(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const Hooked hooked = find_hooked(type);
  const Request request = {Kind::kCpu, kNoIndex};
  PyObject* const device = keyword(kwargs, names().device);
  const bool names_cpu =
      device != nullptr && read_request(device).kind == Kind::kCpu && PyDict_GET_SIZE(kwargs) == 1;
  if (is_off() || shares_memory(args) || (kwargs != nullptr && !names_cpu) ||
      !may_redirect(request))
    return hooked.original(type, args, kwargs);
  return make_and_move(hooked.original, type, args, request, hooked.name);
  END_HANDLE_TH_ERRORS
}

// torch.cuda.FloatTensor(2, 3), which a build without CUDA cannot make: its twin of the CPU does.
PyObject* new_legacy_cuda(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const Request request = {Kind::kCuda, kNoIndex};
  const Hooked hooked = find_hooked(type);
  if (is_off() || kwargs != nullptr || !may_redirect(request))
    return hooked.original(type, args, kwargs);
  const Ref found = cpu_twin_of(hooked.name);
  if (!found)
    return nullptr;
  auto* const cpu = reinterpret_cast<PyTypeObject*>(found.get());
  const newfunc hidden = original_of(cpu);
  return make_and_move(hidden != nullptr ? hidden : cpu->tp_new, cpu, args, request, hooked.name);
  END_HANDLE_TH_ERRORS
}

struct Getter {
  PyGetSetDef* definition = nullptr;
  getter original = nullptr;
};

Getter is_cuda;
Getter device;

// True on the accelerator that stands in for CUDA; torch itself sees the truth. The device of a
// subclass may be a call of its __torch_dispatch__, which may raise.
PyObject* get_is_cuda(PyObject* self, void* closure) {
  return with_python_errors([&]() -> PyObject* {
    const c10::DeviceType type = accelerator_type();
    const bool stands_in = !is_off() && type != c10::DeviceType::CPU &&
                           type != c10::DeviceType::CUDA && THPVariable_Check(self) &&
                           !has_handler(self) && THPVariable_Unpack(self).device().type() == type;
    if (stands_in && !is_called_by_torch())
      Py_RETURN_TRUE;
    return is_cuda.original(self, closure);
  });
}

PyObject* get_device(PyObject* self, void* closure) {
  Ref found = Ref::steal(device.original(self, closure));
  if (!found || !reads_as_cuda() || is_off() || !THPDevice_Check(found.get()))
    return found.release();
  return Ref::share(shown_to_user(found.get())).release();
}

void swap_constructor(PyTypeObject* type, newfunc function) {
  type->tp_new = function;
  PyType_Modified(type);
}

std::vector<PyTypeObject*> hooked_types;

newfunc find_constructor(std::string_view kind) {
  if (kind == "device")
    return new_device;
  if (kind == "generator")
    return new_generator;
  if (kind == "stream")
    return new_stream;
  if (kind == "storage")
    return new_storage;
  if (kind == "tensor")
    return new_tensor;
  if (kind == "legacy")
    return new_legacy;
  return kind == "legacy_cuda" ? new_legacy_cuda : nullptr;
}

}  // namespace

bool hook_type(PyObject* object, const char* kind) {
  const newfunc function = find_constructor(kind);
  if (!PyType_Check(object) || function == nullptr) {
    PyErr_Format(PyExc_TypeError, "%R cannot be hooked as %s", object, kind);
    return false;
  }
  auto* const type = reinterpret_cast<PyTypeObject*>(object);
  if (type->tp_new == function)
    return true;
  Py_INCREF(type);
  originals()[type] = type->tp_new;
  hooked_types.push_back(type);
  swap_constructor(type, function);
  return true;
}

bool hook_getter(PyObject* descriptor, const char* kind) {
  const std::string_view name = kind;
  Getter* const getter = name == "is_cuda" ? &is_cuda : name == "device" ? &device : nullptr;
  if (Py_TYPE(descriptor) != &PyGetSetDescr_Type || getter == nullptr) {
    PyErr_Format(PyExc_TypeError, "%R cannot be hooked as %s", descriptor, kind);
    return false;
  }
  if (getter->definition != nullptr)
    return true;
  getter->definition = reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset;
  getter->original = getter->definition->get;
  getter->definition->get = getter == &device ? get_device : get_is_cuda;
  return true;
}

void unhook_types() {
  for (PyTypeObject* const type : hooked_types)
    swap_constructor(type, originals()[type]);
  hooked_types.clear();
  for (Getter* const getter : {&is_cuda, &device}) {
    if (getter->definition != nullptr)
      getter->definition->get = getter->original;
    getter->definition = nullptr;
  }
}

}  // namespace torch_remote::redirect
