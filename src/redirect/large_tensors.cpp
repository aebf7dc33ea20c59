#include "redirect/large_tensors.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/sites.h"

namespace torch_remote::redirect {
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

// Drops the entries of freed storages, each time that the number of entries has doubled.
void drop_freed() {
  static size_t most = kFewEntries;
  if (makers().size() < most)
    return;
  std::erase_if(makers(), [](const auto& entry) { return entry.second.storage.expired(); });
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

void note_large(PyObject* result) {
  c10::StorageImpl* const storage = storage_of(result);
  if (storage == nullptr || storage->sym_nbytes().maybe_as_int().value_or(0) < kLarge) [[likely]]
    return;
  drop_freed();
  const auto found = makers().find(storage);
  if (found != makers().end())
    return;  // `to` has returned its own tensor
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  const auto shared = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
  makers().emplace(storage, Maker{Weak(shared), user_line()});
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
