#include "redirect/arguments.h"

namespace torch_remote::redirect {

const Names& names() {
  const auto intern = PyUnicode_InternFromString;
  static const Names all = {intern("device"),
                            intern("device_type"),
                            intern("dtype"),
                            intern("generator"),
                            intern("index"),
                            intern("lengths"),
                            intern("memory_format"),
                            intern("non_blocking"),
                            intern("out"),
                            intern("pin_memory"),
                            intern("s"),
                            intern("type")};
  return all;
}

PyObject* keyword(PyObject* kwargs, PyObject* name) {
  // Not PyDict_GetItem(), which saves and restores the thread's exception. Keys are strings, so
  // looking one up cannot fail.
  PyObject* const value = kwargs == nullptr ? nullptr : PyDict_GetItemWithError(kwargs, name);
  return value == Py_None ? nullptr : value;
}

PyObject* positional(PyObject* args, Py_ssize_t place) {
  if (place >= PyTuple_GET_SIZE(args))
    return nullptr;
  PyObject* const value = PyTuple_GET_ITEM(args, place);
  return value == Py_None ? nullptr : value;
}

PyObject* argument(PyObject* args, PyObject* kwargs, Py_ssize_t place, PyObject* name) {
  PyObject* const value = positional(args, place);
  return value != nullptr ? value : keyword(kwargs, name);
}

bool fit(PyObject* args, PyObject* kwargs, Py_ssize_t places,
         std::initializer_list<PyObject*> parameters) {
  const Py_ssize_t given = PyTuple_GET_SIZE(args);
  if (given > places)
    return false;
  if (kwargs == nullptr)
    return true;
  Py_ssize_t known = 0;
  Py_ssize_t place = 0;
  for (PyObject* const name : parameters) {
    const bool is_named = PyDict_GetItemWithError(kwargs, name) != nullptr;
    if (is_named && place < given)
      return false;
    known += is_named ? 1 : 0;
    ++place;
  }
  return known == PyDict_GET_SIZE(kwargs);
}

Ref with_keyword(PyObject* kwargs, PyObject* name, PyObject* value) {
  // A dict with this one keyword needs no copy, which would cost more than a new one.
  const bool is_alone =
      kwargs != nullptr && PyDict_GET_SIZE(kwargs) == 1 && PyDict_GetItem(kwargs, name) != nullptr;
  Ref copy = Ref::steal(kwargs == nullptr || is_alone ? PyDict_New() : PyDict_Copy(kwargs));
  if (copy && PyDict_SetItem(copy.get(), name, value) != 0)
    return {};
  return copy;
}

Ref with_positional(PyObject* args, Py_ssize_t place, PyObject* value) {
  const Py_ssize_t size = PyTuple_GET_SIZE(args);
  Ref copy = Ref::steal(PyTuple_New(size));
  for (Py_ssize_t i = 0; copy && i < size; ++i) {
    PyObject* const item = i == place ? value : PyTuple_GET_ITEM(args, i);
    Py_INCREF(item);
    PyTuple_SET_ITEM(copy.get(), i, item);
  }
  return copy;
}

bool is_true(PyObject* object) {
  return object == Py_True;
}

}  // namespace torch_remote::redirect
