#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include <ATen/core/Tensor.h>

namespace torch_remote::bindings {

// --- reading Python objects. Runs no Python code of others but that of odd sequences.

// Null for what is no tensor.
const at::Tensor* tensor_in(PyObject* object);

// The list or tuple itself, or a list of what another sequence has; null for what is no sequence or
// cannot be read. Only other sequences run Python code.
pybind11::object sequence_of(PyObject* object);

// Calls `use` with each item of a sequence until it returns true.
template <typename Use>
bool any_item(PyObject* object, Use&& use) {
  const pybind11::object sequence = sequence_of(object);
  for (Py_ssize_t i = 0; sequence && i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i)
    if (use(PySequence_Fast_GET_ITEM(sequence.ptr(), i)))
      return true;
  return false;
}

// Returns the error that Python code in `action` has raised, or None. Ctrl-C is raised.
template <typename Action>
pybind11::object attempt(Action&& action) {
  try {
    action();
  } catch (const pybind11::error_already_set& error) {
    if (!error.matches(PyExc_Exception))
      throw;
    return error.value();
  }
  return pybind11::none();
}

// `of.name`, of an interned name.
pybind11::object attribute(const pybind11::object& of, PyObject* name);

// --- what a step finds

struct Entries;

// The states and groups that an optimizer has, and the values of the counters in them. Most steps
// find what the step before them has found: then both notes share it. Needs the GIL.
class FoundState {
 public:
  // `before` may be null.
  FoundState(const pybind11::object& optimizer, const pybind11::object& groups,
             const FoundState* before);

  // The object that was the optimizer's state: load_state_dict() makes another.
  const pybind11::object& state() const { return state_; }

  // Why it could not be read, or None.
  const pybind11::object& error() const { return error_; }

  // The keys of the state, and a new dict for each value.
  const std::vector<pybind11::object>& owners() const;
  pybind11::list states() const;
  pybind11::list groups() const;
  // Empty until end().
  pybind11::list groups_after() const;

  // The step has ended. Counters that have their value of before are not restored.
  void end(const pybind11::object& groups);
  // Calls no operator, which a mode of the program could refuse.
  void restore_counters() const;

 private:
  struct Value {
    std::array<std::byte, sizeof(c10::complex<double>)> bytes;  // as wide as any dtype
    size_t size = 0;                                            // 0: nothing to restore

    void read(const at::Tensor& from);
    bool is_of(const at::Tensor& tensor) const;
    bool equals(const at::Tensor& tensor) const;
  };

  void read(const pybind11::dict& state, const pybind11::object& groups, const FoundState* before);
  const at::Tensor& counter(size_t i) const;

  pybind11::object state_ = pybind11::none();
  pybind11::object error_ = pybind11::none();
  std::shared_ptr<const Entries> states_;
  std::shared_ptr<const Entries> groups_;
  std::vector<Value> values_;
  std::shared_ptr<const Entries> after_;  // the groups after the step
};

}  // namespace torch_remote::bindings
