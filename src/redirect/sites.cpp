#include "redirect/sites.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <frameobject.h>

namespace torch_remote::redirect {
namespace {

constexpr size_t kMaxSites = 10000;  // code made in a loop would otherwise fill the memory

}  // namespace

struct SiteKey {
  PyCodeObject* code = nullptr;
  int offset = -1;
  const char* api = nullptr;
  uint64_t devices = 0;  // asked, used and reason, packed

  bool operator==(const SiteKey&) const = default;
};

struct Site {
  SiteKey key;
  int line = 0;
  Request asked;
  c10::Device used = c10::DeviceType::CPU;
  Reason reason = Reason::kAsAsked;
  uint64_t count = 0;
};

namespace {

struct Hash {
  size_t operator()(const SiteKey& key) const {
    size_t value = reinterpret_cast<uintptr_t>(key.code) ^ reinterpret_cast<uintptr_t>(key.api);
    value = (value + static_cast<size_t>(key.offset)) * 0x9E3779B97F4A7C15;
    return (value ^ key.devices) * 0x9E3779B97F4A7C15;
  }
};

using Sites = std::unordered_map<SiteKey, Site, Hash>;

Sites& sites() {
  static auto* const all = new Sites;
  return *all;
}

uint64_t left_out = 0;

thread_local bool is_logging = false;
Log log_mode = Log::kQuiet;
PyObject* log_function = nullptr;

std::vector<std::string>& library_folders() {
  static auto* const folders = new std::vector<std::string>;
  return *folders;
}

}  // namespace

const char* intern(std::string_view api) {
  static auto* const all = new std::unordered_set<std::string>;
  return all->emplace(api).first->c_str();
}

bool is_library(PyCodeObject* code) {
  static auto* const known = new std::unordered_map<PyCodeObject*, bool>;
  const auto found = known->find(code);
  if (found != known->end())
    return found->second;
  const char* const file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) {
    PyErr_Clear();
    return false;
  }
  const std::string name = file;
  bool is = name.starts_with("<frozen ") || name.starts_with("<eval_with_key>");
  for (const std::string& folder : library_folders())
    is = is || name.starts_with(folder);
  if (known->size() < kMaxSites) {
    Py_INCREF(code);  // so that no other code object gets this address
    known->emplace(code, is);
  }
  return is;
}

bool is_generated(PyCodeObject* code, PyObject* globals) {
  if (PyUnicode_CompareWithASCIIString(code->co_filename, "<string>") != 0) [[likely]]
    return false;
  static PyObject* const name_key = PyUnicode_InternFromString("__name__");
  static PyObject* const file_key = PyUnicode_InternFromString("__file__");
  if (globals == nullptr || PyDict_GetItem(globals, file_key) != nullptr)
    return true;
  PyObject* const name = PyDict_GetItem(globals, name_key);
  return name == nullptr || !PyUnicode_Check(name) ||
         PyUnicode_CompareWithASCIIString(name, "__main__") != 0;
}

namespace {

bool is_users(PyFrameObject* frame) {
  const Ref object = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* const code = reinterpret_cast<PyCodeObject*>(object.get());
  if (is_library(code))
    return false;
  auto* const python = reinterpret_cast<PyObject*>(frame);
  const Ref globals = Ref::steal(PyObject_GetAttrString(python, "f_globals"));
  return !is_generated(code, globals.get());
}

int offset_in(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return PyFrame_GetLineNumber(frame);
#endif
}

// The innermost frame of the user's program, or the innermost of all. Null outside Python.
Ref user_frame() {
  Ref frame = Ref::share(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  Ref first = Ref::share(frame.get());
  while (frame) {
    auto* const object = reinterpret_cast<PyFrameObject*>(frame.get());
    if (is_users(object))
      return frame;
    frame = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(object)));
  }
  return first;
}

uint64_t pack(const Request& asked, c10::Device used, Reason reason) {
  const auto byte = [](auto value, int shift) {
    return static_cast<uint64_t>(static_cast<uint8_t>(value)) << shift;
  };
  return byte(asked.kind, 0) | byte(asked.index, 8) | byte(used.type(), 16) |
         byte(used.index(), 24) | byte(reason, 32);
}

void call_log(const Site& site, bool is_new) {
  if (is_logging)
    return;
  is_logging = true;
  const SiteKey& key = site.key;
  const char* const reason = is_evident(site.reason) ? "" : to_text(site.reason);
  const Ref called = Ref::share(log_function);
  const Ref result = Ref::steal(PyObject_CallFunction(
      called.get(), "ssssOOiO", key.api, to_text(site.asked).c_str(), site.used.str().c_str(),
      reason, key.code->co_filename, key.code->co_name, site.line, is_new ? Py_True : Py_False));
  is_logging = false;
  if (result)
    return;
  const bool is_interrupt = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0;
  PyErr_WriteUnraisable(called.get());
  if (is_interrupt)
    PyErr_SetInterrupt();  // the program gets its Ctrl-C after this call
}

}  // namespace

Ref called_library_frame() {
  Ref outermost;
  Ref frame = Ref::share(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* const object = reinterpret_cast<PyFrameObject*>(frame.get());
    const Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(object)));
    if (!is_library(reinterpret_cast<PyCodeObject*>(code.get())))
      break;
    Ref back = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(object)));
    outermost = std::move(frame);
    frame = std::move(back);
  }
  return outermost;
}

UserLine user_line() {
  const Ref frame = user_frame();
  if (!frame)
    return {};
  auto* const object = reinterpret_cast<PyFrameObject*>(frame.get());
  return {Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(object))),
          PyFrame_GetLineNumber(object)};
}

void count(Site& site) {
  ++site.count;
  const bool is_new = site.count == 1;
  const bool wanted = log_mode == Log::kEveryCall || (log_mode == Log::kNewSites && is_new);
  if (wanted && log_function != nullptr)
    call_log(site, is_new);
}

void set_log(Log log, PyObject* function) {
  log_mode = log;
  Ref::steal(std::exchange(log_function, Ref::share(function).release()));
}

bool set_library_folders(PyObject* folders) {
  library_folders().clear();
  for (Py_ssize_t i = 0; i < PyList_Size(folders); ++i) {
    const char* const folder = PyUnicode_AsUTF8(PyList_GetItem(folders, i));
    if (folder == nullptr)
      return false;
    library_folders().emplace_back(folder);
  }
  return PyErr_Occurred() == nullptr;
}

Site* note(const char* api, const Request& asked, c10::Device used, Reason reason) {
  const Ref frame = user_frame();
  if (!frame)
    return nullptr;
  auto* const object = reinterpret_cast<PyFrameObject*>(frame.get());
  const Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(object)));
  const SiteKey key = {reinterpret_cast<PyCodeObject*>(code.get()), offset_in(object), api,
                       pack(asked, used, reason)};
  auto found = sites().find(key);
  if (found == sites().end()) {
    if (sites().size() >= kMaxSites) {
      ++left_out;
      return nullptr;
    }
    Py_INCREF(key.code);
    const int line = PyFrame_GetLineNumber(object);
    found = sites().emplace(key, Site{key, line, asked, used, reason, 0}).first;
  }
  Site& site = found->second;  // stays in place when the log's handlers add others
  count(site);
  return &site;
}

PyObject* list_sites() {
  // Making Python objects may run the garbage collector, whose finalizers may add sites.
  std::vector<const Site*> present;
  for (const auto& [key, site] : sites())
    present.push_back(&site);
  Ref list = Ref::steal(PyList_New(0));
  for (const Site* const each : present) {
    const Site& site = *each;
    const SiteKey& key = site.key;
    const Ref row = Ref::steal(Py_BuildValue(
        "(OOissssK)", key.code->co_filename, key.code->co_name, site.line, key.api,
        to_text(site.asked).c_str(), site.used.str().c_str(), to_text(site.reason), site.count));
    if (!row || PyList_Append(list.get(), row.get()) != 0)
      return nullptr;
  }
  return list.release();
}

uint64_t count_left_out() {
  return left_out;
}

}  // namespace torch_remote::redirect
