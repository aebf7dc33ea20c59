#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <torch/csrc/Exceptions.h>

#include "base/platform.h"
#include "bindings/frames.h"
#include "bindings/parts.h"
#include "client/machines/machines.h"
#include "client/process/errors.h"
#include "client/process/process.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

using client::Machines;

// Never released.
std::vector<PyObject*> exception_classes;  // by client::ErrorClass
std::vector<PyObject*> failure_classes;    // by wire::ErrorKind
std::vector<PyObject*> local_classes;      // by wire::ErrorKind: what PyTorch raises locally
PyObject* take_back_function = nullptr;
PyObject* start_function = nullptr;
PyObject* begin_progress_function = nullptr;
PyObject* update_progress_function = nullptr;
PyObject* end_progress_function = nullptr;
PyObject* show_warning_function = nullptr;

// Note [The GIL at exit]
//
// When a thread takes the GIL while the interpreter shuts down, Python ends the thread by unwinding
// it, through destructors that may not throw: the process would abort. So at exit only the main
// thread takes the GIL. Other threads count themselves in gil_takers first; if the process is
// exiting they sleep until it ends. let_gil_takers_pass(), called after the exit flag is set and
// before the interpreter shuts down, waits for the threads that counted themselves before.
//
// A thread that returns from a call of ours takes the GIL in PyTorch's bindings, which count
// nothing. On a busy machine it may not have run for a while. So let_gil_takers_pass() also waits,
// without the GIL, until every other thread sleeps: it has the GIL again, and stops at its next
// call, or it does something that takes no GIL.
std::atomic<int> gil_takers{0};

constexpr std::chrono::milliseconds kTakerPatience{1000};
// A thread that computes without end makes the exit so much longer.
constexpr std::chrono::milliseconds kRunnerPatience{300};

class TakingGil {
 public:
  TakingGil() {
    gil_takers.fetch_add(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (client::is_exiting() && !is_main_thread()) {
      gil_takers.fetch_sub(1);
      client::park_if_exiting();
    }
  }

  ~TakingGil() { gil_takers.fetch_sub(1); }

  TakingGil(const TakingGil&) = delete;
  TakingGil& operator=(const TakingGil&) = delete;
};

// A server's text may end within a character or not be UTF-8.
py::object to_python(const std::string& text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// `value`: the exception, or the tuple of its arguments.
[[noreturn]] void throw_python(PyObject* type, PyObject* value) {
  PyErr_SetObject(type, value);
  python_error error;
  error.persist();
  throw error;
}

// The id of its machine, which is its position in sessions(). -1: there is none.
int machine_of(const client::Session& session) {
  const auto sessions = Machines::instance().sessions();
  const auto found = std::ranges::find(sessions, &session);
  return found == sessions.end() ? -1 : static_cast<int>(found - sessions.begin());
}

// SessionLost and DeviceLost get the id of the machine too, so that its provider can say why.
void raise(client::ErrorClass kind, const std::string& text, const client::Session& session) {
  const int machine = machine_of(session);
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  const auto which = static_cast<size_t>(kind);
  PyObject* const type =
      which < exception_classes.size() ? exception_classes[which] : PyExc_RuntimeError;
  const bool is_lost =
      kind == client::ErrorClass::kSessionLost || kind == client::ErrorClass::kDeviceLost;
  py::tuple arguments = py::make_tuple(to_python(text));
  if (is_lost)
    arguments = py::make_tuple(to_python(text), machine);
  throw_python(type, arguments.ptr());
}

// Far from its call an error of the local type could be misread: an IndexError ends a loop over
// __getitem__. So, unless `as.is_local`, it becomes the __cause__ of a plain RemoteError.
//
// `is_of_this_call` of the exception tells TorchDevice that the call that raises it found no memory
// itself, so that it may be made again.
void raise_remote(const wire::Error& error, const std::string& text, client::RaisedAs as) {
  const auto kind = static_cast<size_t>(error.kind);
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  if (as.is_local || error.kind == wire::ErrorKind::kOutOfMemory) {
    const py::object raised = py::handle(failure_classes.at(kind))(to_python(text));
    if (as.is_of_this_call)
      raised.attr("is_of_this_call") = true;
    throw_python(failure_classes[kind], raised.ptr());
  }
  const py::object raised = py::handle(exception_classes.at(0))(to_python(text));
  PyException_SetCause(
      raised.ptr(), py::handle(local_classes.at(kind))(to_python(error.message)).release().ptr());
  throw_python(exception_classes.at(0), raised.ptr());
}

void* release_gil() {
  return PyGILState_Check() && !client::KeepGil::is_kept() ? PyEval_SaveThread() : nullptr;
}

void acquire_gil(void* state) {
  const TakingGil taking;
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

// Runs signal handlers, on the main thread. An exception in one (KeyboardInterrupt) ends the wait.
void check_signals() {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0)
    return;
  python_error error;
  error.persist();
  throw error;
}

void name_interrupt(const std::string& text) {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  try {
    throw;
  } catch (python_error& error) {
    if (PyErr_GivenExceptionMatches(error.type, PyExc_KeyboardInterrupt) == 0)
      return;
    PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
    const py::handle value = error.value;
    if (py::len(value.attr("args")) == 0)
      value.attr("args") = py::make_tuple(text);
  } catch (...) {
  }
}

// Calls a Python function whose errors must not hide what the caller does: they are printed. Raises
// KeyboardInterrupt and SystemExit.
template <typename... Arguments>
py::object call_apart(PyObject* function, const char* what, Arguments... arguments) {
  try {
    const py::handle handle(function);
    return handle(arguments...);
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_Exception)) {
      error.discard_as_unraisable(what);
      return py::none();
    }
    error.restore();
    python_error interrupt;
    interrupt.persist();
    throw interrupt;
  }
}

void take_back(const client::Session& session, uint64_t since) {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  if (take_back_function != nullptr)
    call_apart(take_back_function, "torch_remote: taking back an optimizer's step",
               reinterpret_cast<uintptr_t>(&session), since);
}

// What the function raises is raised by the operator that uses the device.
void start_machine(c10::DeviceIndex index) {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  try {
    const py::handle function(start_function);
    function(static_cast<int>(index));
  } catch (py::error_already_set& raised) {
    raised.restore();
    python_error error;
    error.persist();
    throw error;
  }
}

bool begin_progress(uint64_t bytes, bool is_upload) {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  return call_apart(begin_progress_function, "torch_remote: showing progress", bytes, is_upload)
      .is(py::bool_(true));
}

void update_progress() {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  call_apart(update_progress_function, "torch_remote: showing progress");
}

// In a destructor: nothing is raised.
void end_progress() {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  try {
    const py::handle function(end_progress_function);
    function();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("torch_remote: showing progress");
  }
}

bool warn(const client::ShownWarning& warning, const std::string& file, int line, bool prints) {
  const TakingGil taking;
  py::gil_scoped_acquire gil;
  return call_apart(show_warning_function, "torch_remote: showing a warning",
                    warning.is_deprecation, to_python(torch::processErrorMsg(warning.text)),
                    to_python(file), line, prints)
      .is(py::bool_(true));
}

}  // namespace

void set_take_back(py::object function) {
  take_back_function = function.release().ptr();
}

void set_start(py::object function) {
  start_function = function.release().ptr();
  Machines::instance().hooks().start = &start_machine;
}

void set_progress_hooks(py::object begin, py::object update, py::object end) {
  begin_progress_function = begin.release().ptr();
  update_progress_function = update.release().ptr();
  end_progress_function = end.release().ptr();
  client::python_hooks.begin_progress = &begin_progress;
  client::python_hooks.update_progress = &update_progress;
  client::python_hooks.end_progress = &end_progress;
}

void set_show_warning(py::object function) {
  show_warning_function = function.release().ptr();
  client::python_hooks.warn = &warn;
}

void install_python_hooks() {
  client::python_hooks.raise = &raise;
  client::python_hooks.raise_remote = &raise_remote;
  client::python_hooks.release_gil = &release_gil;
  client::python_hooks.acquire_gil = &acquire_gil;
  client::python_hooks.check_signals = &check_signals;
  client::python_hooks.name_interrupt = &name_interrupt;
  client::python_hooks.find_line = &find_line;
  client::python_hooks.find_stack = &find_stack;
  client::python_hooks.take_back = &take_back;
}

void let_gil_takers_pass() {
  if (client::in_forked_child())
    return;  // the counted threads are the parent's
  py::gil_scoped_release without_gil;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto has_time = [&](std::chrono::milliseconds time) { return Clock::now() - begin < time; };
  // At least once: threads of PyTorch that wait for the GIL get it now and stop at their next call.
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while ((gil_takers > 0 && has_time(kTakerPatience)) ||
           (has_time(kRunnerPatience) && other_threads_run()));
}

void set_exception_types(const py::tuple& classes, const py::tuple& kinds, const py::tuple& local) {
  for (const py::handle type : classes)
    exception_classes.push_back(type.inc_ref().ptr());
  for (const py::handle type : kinds)
    failure_classes.push_back(type.inc_ref().ptr());
  for (const py::handle type : local)
    local_classes.push_back(type.inc_ref().ptr());
}

}  // namespace torch_remote::bindings
