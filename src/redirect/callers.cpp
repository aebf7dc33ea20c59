#include "redirect/callers.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <frameobject.h>
#include <pthread.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

constexpr size_t kMaxNames = 65536;

struct Caller {
  Policy limit = Policy::kFull;
  bool is_torch = false;
  bool has_handler = false;  // the module of Tensor.__torch_function__
};

std::unordered_map<std::string, Policy>& table() {
  static auto* const limits = new std::unordered_map<std::string, Policy>;
  return *limits;
}

// By the address of the module's name, which is kept, so that no other string gets this address.
std::unordered_map<PyObject*, Caller>& known() {
  static auto* const callers = new std::unordered_map<PyObject*, Caller>;
  return *callers;
}

PyObject* worker_check = nullptr;
std::atomic<bool> is_child = false;
bool is_worker = false;

void forget_callers() {
  for (const auto& entry : known())
    Py_DECREF(entry.first);
  known().clear();
}

bool read_policy(PyObject* text, Policy& policy) {
  const char* const name = PyUnicode_AsUTF8(text);
  if (name == nullptr)
    return false;
  const std::string_view view = name;
  if (view == "full" || view == "foreign" || view == "off") {
    policy = view == "full" ? Policy::kFull : view == "off" ? Policy::kOff : Policy::kForeign;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "a policy is 'full', 'foreign' or 'off', not '%s'", name);
  return false;
}

// Modules that are told the truth: torch's own, and ours.
bool is_torch(std::string_view name) {
  const std::string_view package = name.substr(0, name.find('.'));
  return package == "torch" || package == "TorchDevice" || package == "torch_remote" ||
         package == "torch_modal";
}

Caller look_up(std::string_view name) {
  Caller caller;
  caller.is_torch = is_torch(name);
  caller.has_handler = name == "torch._tensor";
  while (!name.empty()) {
    const auto found = table().find(std::string(name));
    if (found != table().end()) {
      caller.limit = found->second;
      break;
    }
    const size_t dot = name.rfind('.');
    name = dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
  }
  return caller;
}

// Code without a Python frame, or without a module's name, is the user's.
Caller caller_of(PyObject* globals) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* const name = globals == nullptr ? nullptr : PyDict_GetItem(globals, key);
  if (name == nullptr || !PyUnicode_CheckExact(name))
    return {};
  const auto found = known().find(name);
  if (found != known().end())
    return found->second;
  if (known().size() >= kMaxNames)
    forget_callers();
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name, &length);
  if (text == nullptr) {
    PyErr_Clear();
    return {};
  }
  const Caller caller = look_up({text, static_cast<size_t>(length)});
  Py_INCREF(name);
  known().emplace(name, caller);
  return caller;
}

bool is_handler(PyFrameObject* frame) {
  const Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  PyObject* const name = reinterpret_cast<PyCodeObject*>(code.get())->co_name;
  return PyUnicode_CompareWithASCIIString(name, "__torch_function__") == 0;
}

// Tensor.__torch_function__ makes a call of a subclass again: it is the call of who made it first.
Caller find_caller() {
  Caller caller = caller_of(PyEval_GetGlobals());
  if (!caller.has_handler) [[likely]]
    return caller;
  Ref frame = Ref::share(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (caller.has_handler && frame) {
    auto* const object = reinterpret_cast<PyFrameObject*>(frame.get());
    if (!is_handler(object))
      return caller;
    frame = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(object)));
    const Ref globals =
        frame ? Ref::steal(PyObject_GetAttrString(frame.get(), "f_globals")) : Ref();
    caller = caller_of(globals.get());
  }
  return caller;
}

bool is_data_worker() {
  if (is_worker || worker_check == nullptr)
    return is_worker;
  const Ref answer = Ref::steal(PyObject_CallNoArgs(worker_check));
  if (!answer)
    PyErr_WriteUnraisable(worker_check);
  is_worker = answer.get() == Py_True;
  return is_worker;
}

}  // namespace

bool set_callers(PyObject* limits) {
  forget_callers();
  table().clear();
  PyObject* name = nullptr;
  PyObject* text = nullptr;
  Py_ssize_t place = 0;
  while (PyDict_Next(limits, &place, &name, &text) != 0) {
    Policy policy = Policy::kFull;
    const char* const module = PyUnicode_AsUTF8(name);
    if (module == nullptr || !read_policy(text, policy))
      return false;
    table()[module] = policy;
  }
  return true;
}

void set_worker_check(PyObject* function) {
  static const int registered = pthread_atfork(nullptr, nullptr, mark_child_process);
  static_cast<void>(registered);
  Ref::steal(std::exchange(worker_check, Ref::share(function).release()));
}

void mark_child_process() {
  is_child = true;
}

bool is_child_process() {
  return is_child.load(std::memory_order_relaxed);
}

Policy caller_limit() {
  const Policy limit = find_caller().limit;
  if (is_child_process() && is_data_worker())
    return std::min(limit, Policy::kForeign);
  return limit;
}

bool is_called_by_torch() {
  return find_caller().is_torch;
}

}  // namespace torch_remote::redirect
