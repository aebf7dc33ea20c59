#include "redirect/methods.h"

#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>

#include "redirect/errors.h"
#include "redirect/hooks.h"
#include "redirect/large_tensors.h"
#include "redirect/method_kinds.h"
#include "redirect/sites.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
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

PyMethodDef* definition_of(PyObject* function) {
  if (PyCFunction_Check(function))
    return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (Py_TYPE(function) == &PyMethodDescr_Type)
    return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  return nullptr;
}

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
