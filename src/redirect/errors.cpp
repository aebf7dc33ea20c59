#include "redirect/errors.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/ref.h"
#include "redirect/sites.h"

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

namespace {

constexpr int64_t kLarge = int64_t{1} << 20;
constexpr size_t kFewEntries = 256;

struct Maker {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being used again
  UserLine line;
};

using Makers = std::unordered_map<const c10::StorageImpl*, Maker>;

Makers& makers() {
  static auto* const all = new Makers;
  return *all;
}

// Drops the entries of freed storages, each time that the number of entries has doubled. The end of
// a code object may run Python, which may come back here: so the entries end after the loop.
void drop_freed() {
  static size_t most = kFewEntries;
  if (makers().size() < most)
    return;
  std::vector<Maker> freed;
  for (auto entry = makers().begin(); entry != makers().end();) {
    const bool is_freed = entry->second.storage.expired();
    if (is_freed)
      freed.push_back(std::move(entry->second));
    entry = is_freed ? makers().erase(entry) : std::next(entry);
  }
  most = std::max(kFewEntries, 2 * makers().size());
}

// Null for what is no tensor, or has no memory.
c10::StorageImpl* storage_of(PyObject* object) {
  if (object == nullptr || !THPVariable_Check(object))
    return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage())
    return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

void note_large(PyObject* result) noexcept {
  c10::StorageImpl* const storage = storage_of(result);
  if (storage == nullptr || storage->sym_nbytes().maybe_as_int().value_or(0) < kLarge) [[likely]]
    return;
  // Else the call has returned an argument, or a view of it, as `to` does.
  const bool is_new = Py_REFCNT(result) == 1 && c10::raw::intrusive_ptr::use_count(storage) == 1;
  if (!is_new)
    return;
  try {
    drop_freed();
    using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
    const auto shared = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
    makers().insert_or_assign(storage, Maker{Weak(shared), user_line()});
  } catch (const std::exception&) {
    return;  // no memory
  }
}

void forget_large_tensors() {
  Makers forgotten;
  forgotten.swap(makers());
}

PyObject* maker_of(PyObject* tensor) {
  const c10::StorageImpl* const storage = storage_of(tensor);
  const auto found = storage == nullptr ? makers().end() : makers().find(storage);
  if (found == makers().end() || !found->second.line.code)
    Py_RETURN_NONE;
  const UserLine& line = found->second.line;
  auto* const code = reinterpret_cast<PyCodeObject*>(line.code.get());
  return Py_BuildValue("(OiO)", code->co_filename, line.number, code->co_name);
}

}  // namespace torch_remote::redirect
