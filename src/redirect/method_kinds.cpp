#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/arguments.h"
#include "redirect/callers.h"
#include "redirect/draws.h"
#include "redirect/hooks.h"
#include "redirect/methods.h"
#include "redirect/redirect.h"
#include "redirect/ref.h"
#include "redirect/state.h"
#include "redirect/tensor_types.h"

namespace torch_remote::redirect {
namespace {

const at::Tensor& tensor_of(PyObject* object) {
  return THPVariable_Unpack(object);
}

// Whether the accelerator is something else than CUDA, so that CUDA's own functions would fail.
bool stands_in_for_cuda() {
  return accelerator_type() != c10::DeviceType::CUDA;
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

// What else in the arguments has a say: pinned memory, `out`, a generator. Null without a Python
// error: nothing has.
PyObject* run_by_other_arguments(const Method& method, PyObject* self, PyObject* args,
                                 PyObject* kwargs, PyObject* asked) {
  if (is_true(keyword(kwargs, names().pin_memory)))
    return run_pinned(method, self, args, kwargs, asked);
  const bool has_out = keyword(kwargs, names().out) != nullptr;
  if (has_out && draws_on_host(self, args, kwargs))
    return run_draw(method, self, args, kwargs);
  if (has_out && asked == nullptr)
    return method.original(self, args, kwargs);
  PyObject* const generator = keyword(kwargs, names().generator);
  if (generator == nullptr)
    return nullptr;
  return run_by_generator(method, self, args, kwargs, asked, generator);
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
  if (is_true(keyword(kwargs, names().pin_memory))) {
    PyObject* const result = run_pinned(method, self, args, kwargs, asked);
    if (result != nullptr || PyErr_Occurred() != nullptr)
      return result;
  }
  if (kwargs != nullptr && draws_on_host(self, args, kwargs))
    return run_draw(method, self, args, kwargs);
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
  if (!fit(args, kwargs, 2, {names().device, names().non_blocking, names().memory_format}))
    return method.original(self, args, kwargs);
  Request request = read_request(argument(args, kwargs, 0, names().device));
  if (request.kind == Kind::kNone)
    request = {Kind::kCuda, kNoIndex};
  PyObject* const device = redirect(request, method.api);
  if (device != nullptr) {
    const Ref options = options_of_move(argument(args, kwargs, 1, names().non_blocking),
                                        keyword(kwargs, names().memory_format));
    return options ? move(self, device, options.get()) : nullptr;
  }
  // A device of the accelerator in use, which CUDA's function would refuse. Where that is the CPU,
  // torch.device("cuda") is one of the CPU.
  PyObject* const named = argument(args, kwargs, 0, names().device);
  const bool is_used = request.kind == Kind::kRemote || request.kind == Kind::kMps ||
                       (request.kind == Kind::kCpu && accelerator_type() == c10::DeviceType::CPU);
  if (!is_used)
    return method.original(self, args, kwargs);
  const Ref options = options_of_move(argument(args, kwargs, 1, names().non_blocking),
                                      keyword(kwargs, names().memory_format));
  return options ? move(self, named, options.get()) : nullptr;
}

PyObject* run_cpu(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  const bool is_right = fit(args, kwargs, 0, {names().memory_format});
  PyObject* const device = is_right ? redirect({Kind::kCpu, kNoIndex}, method.api) : nullptr;
  if (device == nullptr)
    return method.original(self, args, kwargs);
  const Ref options = options_of_move(nullptr, keyword(kwargs, names().memory_format));
  return options ? move(self, device, options.get()) : nullptr;
}

// Memory is pinned for the accelerator in use: the argument can only name it, or one not here.
PyObject* run_pin_memory(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!stands_in_for_cuda() || !fit(args, kwargs, 1, {names().device}))
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
  if (!stands_in_for_cuda() || !fit(args, kwargs, 1, {names().device}))
    return method.original(self, args, kwargs);
  const Ref none = Ref::steal(PyTuple_New(0));
  return method.original(self, none.get(), nullptr);
}

// x.cpu() stays on the accelerator under the full policy, so x.cpu().numpy() has to copy.
PyObject* run_numpy(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!needs_host_copy(self))
    return method.original(self, args, kwargs);
  const Ref host = make_host_copy(self);
  return host ? method.original(host.get(), args, kwargs) : nullptr;
}

// _pack_padded_sequence(input, lengths, batch_first): torch takes lengths of the CPU only.
PyObject* run_pack(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const lengths = argument(args, kwargs, 1, names().lengths);
  if (!needs_host_copy(lengths))
    return method.original(self, args, kwargs);
  const Ref host = make_host_copy(lengths);
  if (!host)
    return nullptr;
  if (positional(args, 1) == lengths) {
    const Ref changed = with_positional(args, 1, host.get());
    return changed ? method.original(self, changed.get(), kwargs) : nullptr;
  }
  const Ref changed = with_keyword(kwargs, names().lengths, host.get());
  return changed ? method.original(self, args, changed.get()) : nullptr;
}

// A tensor of the CPU is never freed while another stream uses it.
PyObject* run_record_stream(const Method& method, PyObject* self, PyObject* args,
                            PyObject* kwargs) {
  const bool is_right =
      argument(args, kwargs, 0, names().s) != nullptr && fit(args, kwargs, 1, {names().s});
  if (is_right && tensor_of(self).device().is_cpu())
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

// The dtype of such a type. Null if there is no such type.
Ref dtype_of(std::string_view type) {
  const Ref found = cpu_twin_of(type);
  Ref dtype = found ? Ref::steal(PyObject_GetAttr(found.get(), names().dtype)) : Ref();
  PyErr_Clear();
  return dtype;
}

// The name of a tensor's type. With read_as="cuda" programs are told "torch.cuda.FloatTensor".
PyObject* read_type(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  Ref name = Ref::steal(method.original(self, args, kwargs));
  const c10::DeviceType told = reads_as();
  const bool is_renamed = name && told != c10::DeviceType::CPU && told != accelerator_type() &&
                          is_on_accelerator(self) && !is_called_by_torch();
  const std::string text = is_renamed ? std::string(text_of_type(name.get())) : std::string();
  const size_t end = text.find('.', 6);  // after "torch."
  if (end == std::string::npos || !text.starts_with("torch."))
    return name.release();
  const std::string renamed = c10::DeviceTypeName(told, /*lower_case=*/true) + text.substr(end);
  return PyUnicode_FromFormat("torch.%s", renamed.c_str());
}

Kind kind_of_type(std::string_view text) {
  if (text.starts_with("torch.cuda."))
    return Kind::kCuda;
  return text.starts_with("torch.mps.") ? Kind::kMps : Kind::kCpu;
}

// type("torch.cuda.FloatTensor"), type(torch.FloatTensor): a device and a dtype in one.
PyObject* run_type(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const asked = argument(args, kwargs, 0, names().dtype);
  if (asked == nullptr)
    return read_type(method, self, args, kwargs);
  const std::string_view text = text_of_type(asked);
  if (!text.starts_with("torch.") || !text.ends_with("Tensor") ||
      !fit(args, kwargs, 2, {names().dtype, names().non_blocking, names().memory_format}))
    return method.original(self, args, kwargs);
  const Request request = {kind_of_type(text), kNoIndex};
  const Ref dtype = dtype_of(text);
  PyObject* const device = dtype ? redirect(request, method.api) : nullptr;
  if (device == nullptr)
    return method.original(self, args, kwargs);
  const Ref options = options_of_move(argument(args, kwargs, 1, names().non_blocking),
                                      keyword(kwargs, names().memory_format));
  if (!options || PyDict_SetItem(options.get(), names().dtype, dtype.get()) != 0)
    return nullptr;
  return move(self, device, options.get());
}

// Whether the name of a device means the accelerator for autocast: "cuda" always, "cpu" where the
// tensors of "cpu" are on the accelerator. Torch itself saves and restores the state of the CPU.
bool means_accelerator(PyObject* name) {
  if (name == nullptr || !PyUnicode_Check(name))
    return false;
  if (PyUnicode_CompareWithASCIIString(name, "cuda") == 0)
    return true;
  return PyUnicode_CompareWithASCIIString(name, "cpu") == 0 &&
         may_redirect({Kind::kCpu, kNoIndex}) && !is_called_by_torch() &&
         caller_limit() == Policy::kFull;
}

Ref name_of_accelerator() {
  const std::string name = c10::DeviceTypeName(accelerator_type(), /*lower_case=*/true);
  return Ref::steal(PyUnicode_FromString(name.c_str()));
}

// get_autocast_dtype("cuda"), set_autocast_dtype(device_type="cuda", ...) and their like.
PyObject* run_autocast(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  const bool is_first = means_accelerator(positional(args, 0));
  const bool is_keyword = means_accelerator(keyword(kwargs, names().device_type));
  if (!stands_in_for_cuda() || is_first == is_keyword)
    return method.original(self, args, kwargs);
  const Ref used = name_of_accelerator();
  if (is_first) {
    const Ref changed = used ? with_positional(args, 0, used.get()) : Ref();
    return changed ? method.original(self, changed.get(), kwargs) : nullptr;
  }
  const Ref changed = used ? with_keyword(kwargs, names().device_type, used.get()) : Ref();
  return changed ? method.original(self, args, changed.get()) : nullptr;
}

// is_autocast_enabled(), set_autocast_enabled(True): without a name CUDA is meant.
PyObject* run_autocast_flag(const Method& method, PyObject* self, PyObject* args,
                            PyObject* kwargs) {
  PyObject* const first = positional(args, 0);
  const bool names_none =
      (first == nullptr || PyBool_Check(first)) && keyword(kwargs, names().device_type) == nullptr;
  if (!stands_in_for_cuda() || !names_none)
    return run_autocast(method, self, args, kwargs);
  const Ref used = name_of_accelerator();
  const Ref head = used ? Ref::steal(PyTuple_Pack(1, used.get())) : Ref();
  const Ref changed = head ? Ref::steal(PySequence_Concat(head.get(), args)) : Ref();
  return changed ? method.original(self, changed.get(), kwargs) : nullptr;
}

// For bodies that may do something else than the call itself: see has_handler().
template <Body body>
PyObject* after_handler(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs) {
  if (has_handler(self))
    return method.original(self, args, kwargs);
  return body(method, self, args, kwargs);
}

struct Entry {
  std::string_view kind;
  Body body;
};

constexpr std::array<Entry, 16> kBodies = {{{"factory", run_factory},
                                            {"autocast", run_autocast},
                                            {"autocast_flag", run_autocast_flag},
                                            {"converter", run_converter},
                                            {"draw", run_draw},
                                            {"draw_in_place", run_draw_in_place},
                                            {"follower", run_follower},
                                            {"to", run_to},
                                            {"cuda", after_handler<run_cuda>},
                                            {"cpu", after_handler<run_cpu>},
                                            {"pack", run_pack},
                                            {"pin_memory", after_handler<run_pin_memory>},
                                            {"is_pinned", after_handler<run_is_pinned>},
                                            {"numpy", after_handler<run_numpy>},
                                            {"record_stream", after_handler<run_record_stream>},
                                            {"type", after_handler<run_type>}}};

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
