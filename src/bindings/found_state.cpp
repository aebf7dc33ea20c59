#include "bindings/found_state.h"

#include <cstring>

#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace torch_remote::bindings {

const at::Tensor* tensor_in(PyObject* object) {
  auto* const tensor_type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  if (!PyType_IsSubtype(Py_TYPE(object), tensor_type))
    return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.defined() ? &tensor : nullptr;
}

py::object sequence_of(PyObject* object) {
  if (tensor_in(object) != nullptr || PyDict_Check(object) || PySequence_Check(object) == 0)
    return {};
  auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(object, ""));
  if (!sequence && PyErr_ExceptionMatches(PyExc_Exception) == 0)
    throw py::error_already_set();  // Ctrl-C
  PyErr_Clear();
  return sequence;
}

py::object attribute(const py::object& of, PyObject* name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(of.ptr(), name));
  if (!value)
    throw py::error_already_set();
  return value;
}

// The entries of many dicts, one after the other. Needs the GIL.
struct Entries {
  std::vector<py::object> owners;  // of each dict: its key in the optimizer's state
  std::vector<py::object> items;   // of each dict keys and values in turns; what is no dict itself
  std::vector<size_t> ends;        // of each dict, in `items`
  std::vector<at::Tensor> counters;  // tensors that may be counters
  bool has_copies = false;           // of lists, because a step may change them
};

namespace {

// A tensor subclass whose sizes and device Python code answers for.
bool has_python_kernels(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python);
}

// A tensor without dimensions. Optimizers count their steps in such tensors.
bool may_be_counter(const at::Tensor& tensor) {
  return !has_python_kernels(tensor) && tensor.dim() == 0;
}

// On the CPU, now: `tensor.data = …` moves a tensor, and its Python object stays the same.
bool is_counter(const at::Tensor& tensor) {
  return may_be_counter(tensor) && tensor.device().is_cpu() && tensor.has_storage() &&
         tensor.const_data_ptr() != nullptr;
}

// Dicts of an optimizer, borrowed, and the key of each, null for a group.
using Dicts = std::vector<std::pair<PyObject*, PyObject*>>;

Dicts dicts_of(const py::dict& state) {
  Dicts dicts;
  dicts.reserve(state.size());
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(state.ptr(), &at, &key, &value) != 0;)
    dicts.emplace_back(key, value);
  return dicts;
}

Dicts dicts_of_groups(const py::object& groups) {
  Dicts dicts;
  any_item(groups.ptr(), [&](PyObject* group) {
    dicts.emplace_back(nullptr, group);
    return false;
  });
  return dicts;
}

void add_entry(PyObject* key, PyObject* value, bool copies_lists, Entries& entries) {
  entries.items.push_back(py::reinterpret_borrow<py::object>(key));
  if (const at::Tensor* const tensor = tensor_in(value); tensor && may_be_counter(*tensor))
    entries.counters.push_back(*tensor);
  if (!copies_lists || !PyList_CheckExact(value)) {
    entries.items.push_back(py::reinterpret_borrow<py::object>(value));
    return;
  }
  entries.has_copies = true;
  entries.items.push_back(
      py::reinterpret_steal<py::object>(PyList_GetSlice(value, 0, PY_SSIZE_T_MAX)));
  if (!entries.items.back())
    throw py::error_already_set();
}

std::shared_ptr<const Entries> read_entries(const Dicts& dicts, bool copies_lists) {
  auto entries = std::make_shared<Entries>();
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (const auto& [owner, dict] : dicts) {
    entries->owners.push_back(py::reinterpret_borrow<py::object>(owner));
    if (!PyDict_Check(dict))
      entries->items.push_back(py::reinterpret_borrow<py::object>(dict));
    for (Py_ssize_t at = 0; PyDict_Check(dict) && PyDict_Next(dict, &at, &key, &value) != 0;)
      add_entry(key, value, copies_lists, *entries);
    entries->ends.push_back(entries->items.size());
  }
  return entries;
}

const std::shared_ptr<const Entries>& no_entries() {
  static const auto nothing = std::make_shared<const Entries>();
  return nothing;
}

// Whether these are dicts with just these entries.
bool have_entries(const Dicts& dicts, const Entries& entries) {
  if (entries.has_copies || entries.ends.size() != dicts.size())
    return false;
  const py::object* known = entries.items.data();
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (size_t i = 0; i < dicts.size(); ++i) {
    const auto& [owner, dict] = dicts[i];
    const py::object* const known_end = entries.items.data() + entries.ends[i];
    if (entries.owners[i].ptr() != owner || !PyDict_Check(dict) ||
        PyDict_GET_SIZE(dict) * 2 != known_end - known)
      return false;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0; known += 2)
      if (known[0].ptr() != key || known[1].ptr() != value)
        return false;
  }
  return true;
}

// A new dict for each that was read.
py::list make_dicts(const Entries& entries) {
  py::list all;
  size_t at = 0;
  for (const size_t end : entries.ends) {
    if (end == at + 1) {  // no dict
      all.append(entries.items[at++]);
      continue;
    }
    py::dict made;
    for (; at < end; at += 2)
      made[entries.items[at]] = entries.items[at + 1];
    all.append(made);
  }
  return all;
}

}  // namespace

FoundState::FoundState(const py::object& optimizer, const py::object& groups,
                       const FoundState* before)
    : states_(no_entries()), groups_(no_entries()) {
  static PyObject* const kName = PyUnicode_InternFromString("state");
  error_ = attempt([&] {
    state_ = attribute(optimizer, kName);
    read(py::dict(state_), groups, before);
  });
}

void FoundState::read(const py::dict& state, const py::object& groups, const FoundState* before) {
  const Dicts states = dicts_of(state);
  const bool is_same = before != nullptr && have_entries(states, *before->states_);
  states_ = is_same ? before->states_ : read_entries(states, true);
  const py::object sequence = sequence_of(groups.ptr());  // owns what dicts_of_groups() borrows
  const Dicts dicts = sequence ? dicts_of_groups(sequence) : Dicts();
  const bool has_groups = before != nullptr && have_entries(dicts, *before->groups_);
  groups_ = has_groups ? before->groups_ : read_entries(dicts, false);
  values_.resize(states_->counters.size() + groups_->counters.size());
  for (size_t i = 0; i < values_.size(); ++i)
    if (is_counter(counter(i)))
      values_[i].read(counter(i));
}

const std::vector<py::object>& FoundState::owners() const {
  return states_->owners;
}

py::list FoundState::states() const {
  return make_dicts(*states_);
}

py::list FoundState::groups() const {
  return make_dicts(*groups_);
}

py::list FoundState::groups_after() const {
  return after_ ? make_dicts(*after_) : py::list();
}

void FoundState::end(const py::object& groups) {
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i].is_of(counter(i)) && values_[i].equals(counter(i)))
      values_[i].size = 0;
  const py::object sequence = sequence_of(groups.ptr());
  if (!sequence)
    return;
  const Dicts dicts = dicts_of_groups(sequence);
  after_ = have_entries(dicts, *groups_) ? groups_ : read_entries(dicts, false);
}

void FoundState::restore_counters() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].is_of(counter(i)))
      continue;
    std::memcpy(counter(i).mutable_data_ptr(), values_[i].bytes.data(), values_[i].size);
    if (!counter(i).is_inference())
      counter(i).unsafeGetTensorImpl()->bump_version();
  }
}

const at::Tensor& FoundState::counter(size_t i) const {
  const size_t of_states = states_->counters.size();
  return i < of_states ? states_->counters[i] : groups_->counters[i - of_states];
}

void FoundState::Value::read(const at::Tensor& from) {
  size = from.itemsize();
  std::memcpy(bytes.data(), from.const_data_ptr(), size);
}

bool FoundState::Value::is_of(const at::Tensor& tensor) const {
  return size != 0 && is_counter(tensor) && tensor.itemsize() == size;
}

bool FoundState::Value::equals(const at::Tensor& tensor) const {
  return std::memcmp(bytes.data(), tensor.const_data_ptr(), size) == 0;
}

}  // namespace torch_remote::bindings
