#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// A builtin function or method of one argument (METH_O) or of none (METH_NOARGS), and its hook.
// Needs the GIL.
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
  static PyMethodDef* definition_of(PyObject* function) {
    if (PyCFunction_Check(function))
      return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
    if (Py_TYPE(function) == &PyMethodDescr_Type)
      return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
    return nullptr;
  }

  int flags_;
  PyMethodDef* definition_ = nullptr;
  PyCFunction original_ = nullptr;
};

}  // namespace torch_remote::redirect
