#include "redirect/errors.h"

#include <utility>

#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

PyObject* handler = nullptr;
thread_local bool tries_again = false;

// Whether Ctrl-C or sys.exit() came while Python code of ours ran: it takes the place of the error.
bool is_end_of_program() {
  return PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0 ||
         PyErr_ExceptionMatches(PyExc_SystemExit) != 0;
}

// Releases a fetched error. Returns false.
bool drop(PyObject* type, PyObject* value, PyObject* trace) {
  Ref::steal(type);
  Ref::steal(value);
  Ref::steal(trace);
  return false;
}

}  // namespace

void set_error_handler(PyObject* function) {
  Ref::steal(std::exchange(handler, Ref::share(function).release()));
}

bool should_try_again(int attempt) {
  if (handler == nullptr)
    return false;
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr)
    PyException_SetTraceback(value, trace);
  const Ref called = Ref::share(handler);
  const Ref answer = Ref::steal(PyObject_CallFunction(called.get(), "Oi", value, attempt));
  if (!answer && is_end_of_program())
    return drop(type, value, trace);
  if (!answer)
    PyErr_WriteUnraisable(called.get());
  if (!answer || answer.get() == Py_None) {
    PyErr_Restore(type, value, trace);
    return false;
  }
  drop(type, value, trace);
  if (answer.get() == Py_True)
    return true;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(answer.get())), answer.get());
  return false;
}

SecondTry::SecondTry() : before_(std::exchange(tries_again, true)) {}

SecondTry::~SecondTry() {
  tries_again = before_;
}

bool is_second_try() {
  return tries_again;
}

}  // namespace torch_remote::redirect
