#include "redirect/types.h"

#include <array>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/callers.h"
#include "redirect/hooks.h"
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
  const c10::DeviceType name = reads_as();
  const bool renamed = name != c10::DeviceType::CPU && !value.is_cpu() &&
                       value.type() == accelerator_type() && !is_called_by_torch();
  return renamed ? object_of({name, value.index()}) : device;
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

// The only argument, if it is a tensor of the accelerator.
PyObject* find_source(PyObject* args, PyObject* kwargs) {
  PyObject* const first = positional(args, 0);
  const bool is_alone = kwargs == nullptr && PyTuple_GET_SIZE(args) == 1;
  return is_alone && first != nullptr && THPVariable_Check(first) && is_on_accelerator(first)
             ? first
             : nullptr;
}

// torch.FloatTensor(2, 3).
PyObject* new_legacy(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const Hooked hooked = find_hooked(type);
  const Request request = {Kind::kCpu, kNoIndex};
  PyObject* const device = keyword(kwargs, names().device);
  const bool names_cpu =
      device != nullptr && read_request(device).kind == Kind::kCpu && PyDict_GET_SIZE(kwargs) == 1;
  if (is_off() || (kwargs != nullptr && !names_cpu) || !may_redirect(request))
    return hooked.original(type, args, kwargs);
  if (PyObject* const source = find_source(args, kwargs))
    return make_alias(type, source);
  if (shares_memory(args))
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
  if (PyObject* const source = find_source(args, kwargs))
    return make_alias(type, source);
  const Ref found = cpu_twin_of(hooked.name);
  if (!found)
    return nullptr;
  auto* const cpu = reinterpret_cast<PyTypeObject*>(found.get());
  const newfunc hidden = original_of(cpu);
  return make_and_move(hidden != nullptr ? hidden : cpu->tp_new, cpu, args, request, hooked.name);
  END_HANDLE_TH_ERRORS
}

// torch.sparse.FloatTensor(indices, values, size), torch.cuda.sparse.FloatTensor(...).
PyObject* new_sparse(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const Hooked hooked = find_hooked(type);
  const bool is_cuda_type = std::string_view(hooked.name).starts_with("torch.cuda.");
  const Request request = {is_cuda_type ? Kind::kCuda : Kind::kCpu, kNoIndex};
  PyObject* const device = is_off() || kwargs != nullptr ? nullptr : redirect(request, hooked.name);
  if (device == nullptr)
    return hooked.original(type, args, kwargs);
  return make_sparse(type, args, device);
  END_HANDLE_TH_ERRORS
}

// The descriptor gets a definition of ours: torch's own may be in memory that cannot be written.
struct Getter {
  PyGetSetDescrObject* descriptor = nullptr;  // null: not hooked
  PyGetSetDef* before = nullptr;
  PyGetSetDef instead = {};
  getter original = nullptr;
};

Getter is_cuda;
Getter is_mps;
Getter device;  // of tensors
Getter generator_device;
Getter stream_device;
Getter event_device;
Getter storage_device;

// Whether a tensor is on the accelerator, and `name` is not that but what programs are told. The
// device of a subclass may be a call of its __torch_dispatch__, which may raise.
bool is_told(PyObject* self, c10::DeviceType name) {
  const c10::DeviceType type = accelerator_type();
  return !is_off() && type != c10::DeviceType::CPU && type != name && THPVariable_Check(self) &&
         !has_handler(self) && THPVariable_Unpack(self).device().type() == type &&
         !is_called_by_torch();
}

// True on the accelerator that stands in for CUDA; torch itself sees the truth.
PyObject* get_is_cuda(PyObject* self, void* closure) {
  return with_python_errors([&]() -> PyObject* {
    if (reads_as() != c10::DeviceType::MPS && is_told(self, c10::DeviceType::CUDA))
      Py_RETURN_TRUE;
    return is_cuda.original(self, closure);
  });
}

PyObject* get_is_mps(PyObject* self, void* closure) {
  return with_python_errors([&]() -> PyObject* {
    if (reads_as() == c10::DeviceType::MPS && is_told(self, c10::DeviceType::MPS))
      Py_RETURN_TRUE;
    return is_mps.original(self, closure);
  });
}

template <const Getter& hooked>
PyObject* get_device(PyObject* self, void* closure) {
  Ref found = Ref::steal(hooked.original(self, closure));
  const bool is_renamed = reads_as() != c10::DeviceType::CPU && !is_off();
  if (!found || !is_renamed || !THPDevice_Check(found.get()))
    return found.release();
  return Ref::share(shown_to_user(found.get())).release();
}

struct HookedGetter {
  std::string_view name;
  Getter* getter;
  ::getter instead;
};

const std::array<HookedGetter, 7>& hooked_getters() {
  static const std::array<HookedGetter, 7> all = {
      {{"is_cuda", &is_cuda, get_is_cuda},
       {"is_mps", &is_mps, get_is_mps},
       {"device", &device, get_device<device>},
       {"generator_device", &generator_device, get_device<generator_device>},
       {"stream_device", &stream_device, get_device<stream_device>},
       {"event_device", &event_device, get_device<event_device>},
       {"storage_device", &storage_device, get_device<storage_device>}}};
  return all;
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
  if (kind == "legacy_cuda")
    return new_legacy_cuda;
  return kind == "sparse" ? new_sparse : nullptr;
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
  for (const HookedGetter& each : hooked_getters()) {
    if (each.name != kind || Py_TYPE(descriptor) != &PyGetSetDescr_Type)
      continue;
    Getter& hooked = *each.getter;
    if (hooked.descriptor != nullptr)
      return true;
    hooked.descriptor = reinterpret_cast<PyGetSetDescrObject*>(Ref::share(descriptor).release());
    hooked.before = hooked.descriptor->d_getset;
    hooked.original = hooked.before->get;
    hooked.instead = *hooked.before;
    hooked.instead.get = each.instead;
    hooked.descriptor->d_getset = &hooked.instead;
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%R cannot be hooked as %s", descriptor, kind);
  return false;
}

void unhook_types() {
  for (PyTypeObject* const type : hooked_types)
    swap_constructor(type, originals()[type]);
  hooked_types.clear();
  for (const HookedGetter& each : hooked_getters()) {
    Getter& hooked = *each.getter;
    if (hooked.descriptor == nullptr)
      continue;
    hooked.descriptor->d_getset = hooked.before;
    Ref::steal(reinterpret_cast<PyObject*>(std::exchange(hooked.descriptor, nullptr)));
  }
}

}  // namespace torch_remote::redirect
