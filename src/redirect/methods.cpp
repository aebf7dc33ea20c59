#include "redirect/methods.h"

#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>

#include "redirect/arguments.h"
#include "redirect/errors.h"
#include "redirect/hooks.h"
#include "redirect/ref.h"
#include "redirect/sites.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

// {"device": device}, the commonest keywords of all, which is kept for the next call. Torch only
// reads it; a __torch_function__ may keep or change it, and then it is not used again. The device
// is one of object_of(). Needs the GIL.
class DeviceKeyword {
 public:
  explicit DeviceKeyword(PyObject* device) {
    if (kept_for != device) {
      Ref::steal(std::exchange(kept, with_keyword(nullptr, names().device, device).release()));
      kept_for = device;
    }
    dict_ = Ref::share(kept);
    references_ = dict_ ? Py_REFCNT(kept) : 0;
  }

  ~DeviceKeyword() {
    PyObject* const dict = dict_.get();
    if (dict == nullptr || dict != kept)
      return;
    const bool is_same = Py_REFCNT(dict) == references_ && PyDict_GET_SIZE(dict) == 1 &&
                         PyDict_GetItemWithError(dict, names().device) == kept_for;
    if (!is_same) {
      Ref::steal(std::exchange(kept, nullptr));
      kept_for = nullptr;
    }
  }

  DeviceKeyword(const DeviceKeyword&) = delete;
  DeviceKeyword& operator=(const DeviceKeyword&) = delete;

  PyObject* get() const { return dict_.get(); }

 private:
  static inline PyObject* kept = nullptr;      // needs the GIL
  static inline PyObject* kept_for = nullptr;  // borrowed: devices of object_of() live for ever

  Ref dict_;
  Py_ssize_t references_ = 0;
};

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

}  // namespace

PyObject* call_with_device(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* device, PyObject* named) {
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

namespace {

constexpr size_t kMaxSlots = 160;

struct Slot {
  PyMethodDef* definition = nullptr;
  Method method;
  Body body = nullptr;
};

std::array<Slot, kMaxSlots> slots;
size_t used_slots = 0;

// Not HANDLE_TH_ERRORS, whose handler of warnings costs more than our own work.
PyObject* call_once(const Method& method, Body body, PyObject* self, PyObject* args,
                    PyObject* kwargs) {
  try {
    return body(method, self, args, kwargs);
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

// Whether the error is of a kind that should_try_again() knows: MPS raises TypeError for float64.
bool is_explained() {
  return PyErr_ExceptionMatches(PyExc_RuntimeError) != 0 ||
         PyErr_ExceptionMatches(PyExc_TypeError) != 0;
}

// A torch function mode (`with torch.device(...)`) sees the call first and then makes it again.
PyObject* call(const Slot& slot, PyObject* self, PyObject* args, PyObject* kwargs) {
  const Method method = slot.method;
  if (situation().policy == Policy::kOff || at::impl::PythonTorchFunctionTLS::stack_len() > 0)
    return method.original(self, args, kwargs);
  const Body body = slot.body;
  PyObject* result = call_once(method, body, self, args, kwargs);
  for (int attempt = 0; result == nullptr && is_explained() && should_try_again(attempt);
       ++attempt) {
    const SecondTry again;
    result = call_once(method, body, self, args, kwargs);
  }
  note_large(result);
  return result;
}

// A PyCFunction gets no data of its own, so each slot needs a function of its own.
template <size_t I>
PyObject* trampoline(PyObject* self, PyObject* args, PyObject* kwargs) {
  return call(slots[I], self, args, kwargs);
}

template <size_t... I>
constexpr std::array<PyCFunctionWithKeywords, sizeof...(I)> make_trampolines(
    std::index_sequence<I...> /*indices*/) {
  return {&trampoline<I>...};
}

constexpr auto kTrampolines = make_trampolines(std::make_index_sequence<kMaxSlots>{});

bool takes_keywords(const PyMethodDef& definition) {
  const int kinds = METH_VARARGS | METH_KEYWORDS | METH_FASTCALL | METH_NOARGS | METH_O;
  return (definition.ml_flags & kinds) == (METH_VARARGS | METH_KEYWORDS);
}

PyCFunction untyped(PyCFunctionWithKeywords function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyCFunctionWithKeywords typed(PyCFunction function) {
  return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

bool hook_method(PyObject* function, const char* kind, const char* api) {
  PyMethodDef* const definition = definition_of(function);
  const Body body = find_body(kind);
  if (definition == nullptr || !takes_keywords(*definition) || body == nullptr) {
    PyErr_Format(PyExc_TypeError, "%s cannot be hooked as %s", api, kind);
    return false;
  }
  for (size_t i = 0; i < used_slots; ++i) {
    if (slots[i].definition == definition)
      return true;
  }
  if (used_slots == kMaxSlots) {
    PyErr_SetString(PyExc_RuntimeError, "TorchDevice has no room for another hook");
    return false;
  }
  const PyCFunctionWithKeywords original = typed(definition->ml_meth);
  if (std::strcmp(kind, "to") == 0)
    set_original_to(original);
  slots[used_slots] = {definition, {original, intern(api)}, body};
  definition->ml_meth = untyped(kTrampolines[used_slots]);
  ++used_slots;
  return true;
}

void unhook_methods() {
  for (size_t i = 0; i < used_slots; ++i)
    slots[i].definition->ml_meth = untyped(slots[i].method.original);
  used_slots = 0;
}

}  // namespace torch_remote::redirect
