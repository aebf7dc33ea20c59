#include "bindings/python_hooks.h"

#include <vector>

#include <unistd.h>

#include <torch/csrc/Exceptions.h>

#include "bindings/frames.h"
#include "client/errors.h"
#include "client/keep_gil.h"
#include "client/process.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

// Never given back.
std::vector<PyObject*> exception_classes;  // by client::ErrorClass
std::vector<PyObject*> failure_classes;    // by wire::ErrorKind

[[noreturn]] void raise_python(const std::vector<PyObject*>& classes, size_t which,
                               const std::string& text) {
  py::gil_scoped_acquire gil;
  PyErr_SetString(which < classes.size() ? classes[which] : PyExc_RuntimeError, text.c_str());
  python_error error;
  error.persist();
  throw error;
}

void raise(client::ErrorClass kind, const std::string& text) {
  raise_python(exception_classes, static_cast<size_t>(kind), text);
}

void raise_remote(const wire::Error& error, const std::string& text) {
  raise_python(failure_classes, static_cast<size_t>(error.kind), text);
}

void* release_gil() {
  return PyGILState_Check() && !client::KeepGil::is_kept() ? PyEval_SaveThread() : nullptr;
}

// Once the interpreter is going down, taking the GIL would end this thread by unwinding it, through destructors
// that may not throw: it sleeps until the process ends instead.
void acquire_gil(void* state) {
  // Before the interpreter goes down: a thread that already waits for the GIL when it does is past this point.
  client::park_if_exiting();
#if PY_VERSION_HEX >= 0x030D0000
  const bool finalizing = Py_IsFinalizing();
#else
  const bool finalizing = _Py_IsFinalizing();
#endif
  while (finalizing)
    pause();
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

// Runs signal handlers, if this is the main thread; an exception of theirs (KeyboardInterrupt) ends the wait.
void check_signals() {
  client::park_if_exiting();
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0)
    return;
  python_error error;
  error.persist();
  throw error;
}

}  // namespace

void install_python_hooks() {
  client::python_hooks.raise = &raise;
  client::python_hooks.raise_remote = &raise_remote;
  client::python_hooks.release_gil = &release_gil;
  client::python_hooks.acquire_gil = &acquire_gil;
  client::python_hooks.check_signals = &check_signals;
  client::python_hooks.find_line = &find_line;
}

void set_exception_types(const py::tuple& classes, const py::tuple& kinds) {
  for (const py::handle type : classes)
    exception_classes.push_back(type.inc_ref().ptr());
  for (const py::handle type : kinds)
    failure_classes.push_back(type.inc_ref().ptr());
}

}  // namespace torch_remote::bindings
