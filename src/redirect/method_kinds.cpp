#include "redirect/method_kinds.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/callers.h"
#include "redirect/device_keyword.h"
#include "redirect/original_to.h"
#include "redirect/redirect.h"
#include "redirect/ref.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

const at::Tensor& tensor_of(PyObject* object) {
  return THPVariable_Unpack(object);
}

bool is_on_accelerator(PyObject* tensor) {
  const c10::DeviceType type = accelerator_type();
  return type != c10::DeviceType::CPU && tensor_of(tensor).device().type() == type;
}

// Whether the accelerator is something else than CUDA, so that CUDA's own functions would fail.
bool stands_in_for_cuda() {
  return accelerator_type() != c10::DeviceType::CUDA;
}

// Does something while a Python exception is set, which stays set. Returns null.
template <typename Action>
PyObject* fail_after(Action action) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  action();
  PyErr_Restore(type, value, trace);
  return nullptr;
}

// The interpreter makes a dict for each call; nobody else sees it, so the device is replaced in it
// for the call, and put back for a C caller that keeps its dict. Another dict is copied. `named` is
// the device in `kwargs`, if there is one.
PyObject* call_with_device(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* device, PyObject* named = nullptr) {
  if (named != nullptr && PyDict_GET_SIZE(kwargs) == 1) {
    const DeviceKeyword changed(device);
    return changed.get() == nullptr ? nullptr : method.original(self, args, changed.get());
  }
  const Ref asked = Ref::share(named);
  if (asked && Py_REFCNT(kwargs) == 1 && PyDict_SetItem(kwargs, names().device, device) == 0) {
    PyObject* const result = method.original(self, args, kwargs);
    if (result == nullptr)
      return fail_after([&] { PyDict_SetItem(kwargs, names().device, asked.get()); });
    PyDict_SetItem(kwargs, names().device, asked.get());
    return result;
  }
  const Ref changed = with_keyword(kwargs, names().device, device);
  return changed ? method.original(self, args, changed.get()) : nullptr;
}

// Where no accelerator can pin memory, ordinary memory has to do.
PyObject* without_pinning(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  const Ref changed = with_keyword(kwargs, names().pin_memory, Py_False);
  return changed ? method.original(self, args, changed.get()) : nullptr;
}

// Pinned memory is memory of the CPU, whatever the policy says.
PyObject* run_pinned(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                     PyObject* device) {
  const Kind kind = read_request(device).kind;
  if (kind != Kind::kNone && kind != Kind::kCpu)
    return nullptr;
  if (accelerator_type() == c10::DeviceType::CPU)
    return without_pinning(method, self, args, kwargs);
  return method.original(self, args, kwargs);
}

// The device that a generator brings with it. A generator of the CPU changes nothing.
PyObject* device_of_generator(PyObject* generator) {
  if (!THPGenerator_Check(generator))
    return nullptr;
  const c10::Device device = reinterpret_cast<THPGenerator*>(generator)->cdata.device();
  return device.is_cpu() ? nullptr : object_of(device);
}

// What else in the arguments has a say: pinned memory, `out`, a generator. Null without a Python
// error: nothing has.
PyObject* run_by_other_arguments(const Method& method, PyObject* self, PyObject* args,
                                 PyObject* kwargs, PyObject* asked) {
  if (is_true(keyword(kwargs, names().pin_memory)))
    return run_pinned(method, self, args, kwargs, asked);
  if (asked != nullptr)
    return nullptr;
  if (keyword(kwargs, names().out) != nullptr)
    return method.original(self, args, kwargs);
  PyObject* const generator = keyword(kwargs, names().generator);
  if (generator == nullptr)
    return nullptr;
  PyObject* const device = device_of_generator(generator);
  return device == nullptr ? method.original(self, args, kwargs)
                           : call_with_device(method, self, args, kwargs, device);
}

PyObject* run_factory(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (kwargs == nullptr && situation().policy == Policy::kForeign)
    return method.original(self, args, kwargs);  // the same as below, sooner
  PyObject* const asked = keyword(kwargs, names().device);
  const bool has_others = kwargs != nullptr && PyDict_GET_SIZE(kwargs) > (asked == nullptr ? 0 : 1);
  if (has_others) {
    PyObject* const result = run_by_other_arguments(method, self, args, kwargs, asked);
    if (result != nullptr || PyErr_Occurred() != nullptr)
      return result;
  }
  PyObject* const device = redirect(read_request(asked), method.api);
  if (device == nullptr)
    return method.original(self, args, kwargs);
  return call_with_device(method, self, args, kwargs, device, asked);
}

bool has_tensor(PyObject* args) {
  for (Py_ssize_t i = 0; i < 2 && i < PyTuple_GET_SIZE(args); ++i) {
    if (THPVariable_Check(PyTuple_GET_ITEM(args, i)))
      return true;
  }
  return false;
}

PyObject* run_follower(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const asked = keyword(kwargs, names().device);
  PyObject* const device = asked == nullptr ? nullptr : redirect(read_request(asked), method.api);
  if (device == nullptr)
    return method.original(self, args, kwargs);
  return call_with_device(method, self, args, kwargs, device, asked);
}

PyObject* run_converter(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  const auto body = has_tensor(args) ? run_follower : run_factory;
  return body(method, self, args, kwargs);
}

PyObject* run_to(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const first = positional(args, 0);
  PyObject* const asked = first != nullptr ? first : keyword(kwargs, names().device);
  const Request request = read_request(asked);
  if (request.kind == Kind::kOther || request.kind == Kind::kNone)
    return method.original(self, args, kwargs);
  PyObject* const device = redirect(request, method.api);
  if (device == nullptr)
    return method.original(self, args, kwargs);
  if (first == nullptr)
    return call_with_device(method, self, args, kwargs, device, asked);
  const Ref changed = with_positional(args, 0, device);
  return changed ? method.original(self, changed.get(), kwargs) : nullptr;
}

// `Tensor.to(device, **kwargs)` without redirection.
PyObject* move(PyObject* tensor, PyObject* device, PyObject* kwargs) {
  const Ref args = Ref::steal(PyTuple_Pack(1, device));
  return args ? call_to(tensor, args.get(), kwargs) : nullptr;
}

Ref options_of_move(PyObject* non_blocking, PyObject* memory_format) {
  Ref options = Ref::steal(PyDict_New());
  if (options && non_blocking != nullptr)
    PyDict_SetItem(options.get(), names().non_blocking, non_blocking);
  if (options && memory_format != nullptr)
    PyDict_SetItem(options.get(), names().memory_format, memory_format);
  return options;
}

// cuda(device=None, non_blocking=False, memory_format=...)
PyObject* run_cuda(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  Request request = read_request(argument(args, kwargs, 0, names().device));
  if (request.kind == Kind::kNone)
    request = {Kind::kCuda, kNoIndex};
  PyObject* const device = redirect(request, method.api);
  if (device != nullptr) {
    const Ref options = options_of_move(argument(args, kwargs, 1, names().non_blocking),
                                        keyword(kwargs, names().memory_format));
    return options ? move(self, device, options.get()) : nullptr;
  }
  // A device of the accelerator itself, which CUDA's function would refuse.
  PyObject* const named = argument(args, kwargs, 0, names().device);
  if (request.kind != Kind::kRemote && request.kind != Kind::kMps)
    return method.original(self, args, kwargs);
  const Ref options = options_of_move(argument(args, kwargs, 1, names().non_blocking),
                                      keyword(kwargs, names().memory_format));
  return options ? move(self, named, options.get()) : nullptr;
}

PyObject* run_cpu(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const device = redirect({Kind::kCpu, kNoIndex}, method.api);
  if (device == nullptr)
    return method.original(self, args, kwargs);
  const Ref options = options_of_move(nullptr, argument(args, kwargs, 0, names().memory_format));
  return options ? move(self, device, options.get()) : nullptr;
}

// Memory is pinned for the accelerator in use: the argument can only name it, or one not here.
PyObject* run_pin_memory(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!stands_in_for_cuda())
    return method.original(self, args, kwargs);
  const bool nothing_to_do = is_on_accelerator(self) || accelerator_type() == c10::DeviceType::CPU;
  if (nothing_to_do) {
    Py_INCREF(self);
    return self;
  }
  const Ref none = Ref::steal(PyTuple_New(0));
  return method.original(self, none.get(), nullptr);
}

PyObject* run_is_pinned(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!stands_in_for_cuda())
    return method.original(self, args, kwargs);
  const Ref none = Ref::steal(PyTuple_New(0));
  return method.original(self, none.get(), nullptr);
}

// x.cpu() stays on the accelerator under the full policy, so x.cpu().numpy() has to copy.
PyObject* run_numpy(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (situation().policy != Policy::kFull || !is_on_accelerator(self))
    return method.original(self, args, kwargs);
  at::Tensor copy;
  {
    const at::Tensor source = tensor_of(self);
    PyThreadState* const thread = PyEval_SaveThread();
    try {
      copy = source.to(c10::DeviceType::CPU);
    } catch (...) {
      PyEval_RestoreThread(thread);
      throw;
    }
    PyEval_RestoreThread(thread);
  }
  const Ref host = Ref::steal(THPVariable_Wrap(copy));
  return host ? method.original(host.get(), args, kwargs) : nullptr;
}

// A tensor of the CPU is never freed while another stream uses it.
PyObject* run_record_stream(const Method& method, PyObject* self, PyObject* args,
                            PyObject* kwargs) {
  if (tensor_of(self).device().is_cpu())
    Py_RETURN_NONE;
  return method.original(self, args, kwargs);
}

std::string_view text_of_type(PyObject* type) {
  if (PyType_Check(type))
    return reinterpret_cast<PyTypeObject*>(type)->tp_name;
  const char* const text = PyUnicode_Check(type) ? PyUnicode_AsUTF8(type) : nullptr;
  if (text == nullptr)
    PyErr_Clear();
  return text == nullptr ? std::string_view() : text;
}

// The dtype of torch.FloatTensor for "FloatTensor". Null if there is no such type.
Ref dtype_of(std::string_view type) {
  const Ref torch = Ref::steal(PyImport_ImportModule("torch"));
  const Ref name =
      Ref::steal(PyUnicode_FromStringAndSize(type.data(), static_cast<Py_ssize_t>(type.size())));
  const Ref found = torch ? Ref::steal(PyObject_GetAttr(torch.get(), name.get())) : Ref();
  Ref dtype = found ? Ref::steal(PyObject_GetAttr(found.get(), names().dtype)) : Ref();
  PyErr_Clear();
  return dtype;
}

// The name of a tensor's type. With read_as="cuda" programs are told "torch.cuda.FloatTensor".
PyObject* read_type(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  Ref name = Ref::steal(method.original(self, args, kwargs));
  const bool is_renamed = name && reads_as_cuda() && stands_in_for_cuda() &&
                          is_on_accelerator(self) && !is_called_by_torch();
  const std::string text = is_renamed ? std::string(text_of_type(name.get())) : std::string();
  const size_t end = text.find('.', 6);  // after "torch."
  if (end == std::string::npos || !text.starts_with("torch."))
    return name.release();
  return PyUnicode_FromFormat("torch.cuda%s", text.c_str() + end);
}

// type("torch.cuda.FloatTensor"), type(torch.FloatTensor): a device and a dtype in one.
PyObject* run_type(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const asked = argument(args, kwargs, 0, names().dtype);
  if (asked == nullptr)
    return read_type(method, self, args, kwargs);
  std::string_view text = text_of_type(asked);
  if (!text.starts_with("torch.") || !text.ends_with("Tensor"))
    return method.original(self, args, kwargs);
  text.remove_prefix(6);
  Request request = {Kind::kCpu, kNoIndex};
  if (text.starts_with("cuda."))
    request.kind = Kind::kCuda;
  text.remove_prefix(text.find('.') == std::string_view::npos ? 0 : text.find('.') + 1);
  const Ref dtype = dtype_of(text);
  PyObject* const device = dtype ? redirect(request, method.api) : nullptr;
  if (device == nullptr)
    return method.original(self, args, kwargs);
  const Ref options = with_keyword(nullptr, names().dtype, dtype.get());
  return options ? move(self, device, options.get()) : nullptr;
}

// is_autocast_enabled("cuda"), set_autocast_dtype("cuda", ...) and their like. Without a name, or
// with only a flag, CUDA is meant.
PyObject* run_autocast(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const first = positional(args, 0);
  const bool names_cuda = first != nullptr && PyUnicode_Check(first) &&
                          PyUnicode_CompareWithASCIIString(first, "cuda") == 0;
  const bool names_none = kwargs == nullptr && (first == nullptr || PyBool_Check(first) != 0);
  if (!stands_in_for_cuda() || !(names_cuda || names_none))
    return method.original(self, args, kwargs);
  const std::string name = c10::DeviceTypeName(accelerator_type(), /*lower_case=*/true);
  const Ref used = Ref::steal(PyUnicode_FromString(name.c_str()));
  const Ref rest = Ref::steal(PyTuple_GetSlice(args, names_cuda ? 1 : 0, PyTuple_GET_SIZE(args)));
  const Ref head = used ? Ref::steal(PyTuple_Pack(1, used.get())) : Ref();
  const Ref changed = head && rest ? Ref::steal(PySequence_Concat(head.get(), rest.get())) : Ref();
  return changed ? method.original(self, changed.get(), kwargs) : nullptr;
}

struct Entry {
  std::string_view kind;
  Body body;
};

constexpr std::array<Entry, 12> kBodies = {{{"factory", run_factory},
                                            {"autocast", run_autocast},
                                            {"converter", run_converter},
                                            {"follower", run_follower},
                                            {"to", run_to},
                                            {"cuda", run_cuda},
                                            {"cpu", run_cpu},
                                            {"pin_memory", run_pin_memory},
                                            {"is_pinned", run_is_pinned},
                                            {"numpy", run_numpy},
                                            {"record_stream", run_record_stream},
                                            {"type", run_type}}};

}  // namespace

Body find_body(const char* kind) {
  if (std::string_view(kind) == "parse_to")  // what Module.to does first
    return run_to;
  for (const Entry& entry : kBodies) {
    if (entry.kind == kind)
      return entry.body;
  }
  return nullptr;
}

}  // namespace torch_remote::redirect
