#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/ref.h"

// What hooks need. All need the GIL.
namespace torch_remote::redirect {

// Whether torch hands calls of this tensor to the __torch_function__ of its class. Hooks that would
// do something else than the call itself then make the call: the handler's own call comes back to
// the hook.
bool has_handler(PyObject* tensor);

// Tensor.to without redirection.
void set_original_to(PyCFunctionWithKeywords function);

// `kwargs` may be null. New reference, or null with a Python error.
PyObject* call_to(PyObject* tensor, PyObject* args, PyObject* kwargs);

// --- copies: under the full policy x.cpu() stays on the accelerator, so what needs a tensor of the
// CPU gets a copy

bool is_on_accelerator(PyObject* tensor);

// Whether the object is a tensor of the accelerator that the policy would not let leave it.
bool needs_host_copy(PyObject* object);

// A copy on the CPU. Waits. May throw C++ exceptions.
Ref make_host_copy(PyObject* tensor);

// Such a copy where the object needs one, else the object itself.
Ref on_host(PyObject* object);

// --- functions without keywords

// Of a builtin function or method; null for other objects.
PyMethodDef* definition_of(PyObject* function);

// A builtin function or method of one argument (METH_O) or of none (METH_NOARGS), and its hook.
class Unary {
 public:
  explicit Unary(int flags = METH_O) : flags_(flags) {}

  // Hooking twice does nothing the second time. False with a Python error.
  bool hook(PyObject* function, PyCFunction instead) {
    PyMethodDef* const definition = definition_of(function);
    if (definition == nullptr || definition->ml_flags != flags_) {
      PyErr_Format(PyExc_TypeError, "%R does not take %s argument", function,
                   flags_ == METH_O ? "one" : "no");
      return false;
    }
    if (definition_ != nullptr)
      return true;
    definition_ = definition;
    original_ = definition->ml_meth;
    definition->ml_meth = instead;
    return true;
  }

  void unhook() {
    if (definition_ != nullptr)
      definition_->ml_meth = original_;
    definition_ = nullptr;
  }

  // Also for a call that began before unhook().
  PyObject* call_original(PyObject* self, PyObject* argument = nullptr) const {
    return original_(self, argument);
  }

 private:
  int flags_;
  PyMethodDef* definition_ = nullptr;
  PyCFunction original_ = nullptr;
};

}  // namespace torch_remote::redirect
