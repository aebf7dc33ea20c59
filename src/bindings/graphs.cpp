#include "client/backend/graphs.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <c10/util/MaybeOwned.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/parts.h"
#include "client/process/recording.h"
#include "client/programs/function.h"
#include "client/programs/graph.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

using client::Function;
using client::FunctionRecording;
using client::Graph;

// A value in a list that is no tensor.
struct Other {
  Py_ssize_t at;
  py::object value;
};

// A list of tensors and other values: the tensors, and where the others are.
struct Values {
  Py_ssize_t size = 0;
  std::vector<at::Tensor> tensors;
  std::vector<Other> others;
};

// Gives `take` each tensor, and returns the others. None, which stands for an undefined tensor, is
// one of these.
template <class Take>
std::vector<Other> take_apart(const py::list& list, const Take& take) {
  std::vector<Other> others;
  const Py_ssize_t size = PyList_GET_SIZE(list.ptr());
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const item = PyList_GET_ITEM(list.ptr(), i);
    if (THPVariable_Check(item))
      take(THPVariable_Unpack(item));
    else
      others.push_back({i, py::reinterpret_borrow<py::object>(item)});
  }
  return others;
}

Values take_apart(const py::list& list) {
  Values values;
  values.size = PyList_GET_SIZE(list.ptr());
  values.others =
      take_apart(list, [&](const at::Tensor& tensor) { values.tensors.push_back(tensor); });
  return values;
}

// Tensors that somebody else keeps. A reference of its own would cost more than all else in a run:
// PyTorch takes the GIL when the second reference to a tensor of Python begins or ends.
class BorrowedTensors {
 public:
  BorrowedTensors() = default;
  BorrowedTensors(const BorrowedTensors&) = delete;
  BorrowedTensors& operator=(const BorrowedTensors&) = delete;

  ~BorrowedTensors() {
    for (at::Tensor& tensor : tensors_)
      Borrow::destroyBorrow(tensor);
  }

  void reserve(size_t count) { tensors_.reserve(count); }

  void push_back(const at::Tensor& tensor) { tensors_.push_back(Borrow::createBorrow(tensor)); }

  at::TensorList list() const { return tensors_; }

 private:
  using Borrow = c10::MaybeOwnedTraits<at::Tensor>;

  std::vector<at::Tensor> tensors_;
};

bool are_equal(const std::vector<Other>& one, const std::vector<Other>& other) {
  if (one.size() != other.size())
    return false;
  for (size_t i = 0; i < one.size(); ++i)
    if (one[i].at != other[i].at || Py_TYPE(one[i].value.ptr()) != Py_TYPE(other[i].value.ptr()) ||
        !one[i].value.equal(other[i].value))
      return false;
  return true;
}

// A Function whose arguments and results may be other values too: each is what it was when the
// calls were recorded.
class PyFunction {
 public:
  PyFunction(std::unique_ptr<Function> function, std::vector<Other> arguments, Values results)
      : function_(std::move(function)),
        arguments_(std::move(arguments)),
        result_count_(results.size),
        results_(std::move(results.others)) {}

  // The results; None if the arguments are others, or the thread records a graph.
  py::object call(const py::list& list) {
    if (client::current_recording() != nullptr)
      return py::none();
    // Keeps the arguments while other threads of Python run, which may change the list.
    const auto kept = py::reinterpret_steal<py::list>(
        PyList_GetSlice(list.ptr(), 0, PyList_GET_SIZE(list.ptr())));
    BorrowedTensors tensors;
    tensors.reserve(kept.size());
    const std::vector<Other> others =
        take_apart(kept, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    if (!are_equal(others, arguments_))
      return py::none();
    std::optional<std::vector<at::Tensor>> made;
    {
      const py::gil_scoped_release no_gil;
      made = function_->run(tensors.list());
    }
    if (!made)
      return py::none();
    py::list results(static_cast<size_t>(result_count_));
    for (const Other& other : results_)
      PyList_SET_ITEM(results.ptr(), other.at, other.value.inc_ref().ptr());
    size_t next = 0;
    for (Py_ssize_t i = 0; i < result_count_; ++i)
      if (PyList_GET_ITEM(results.ptr(), i) == nullptr)
        PyList_SET_ITEM(results.ptr(), i, THPVariable_Wrap(std::move((*made)[next++])));
    return results;
  }

  uint64_t calls() const { return function_->calls(); }

 private:
  std::unique_ptr<Function> function_;
  std::vector<Other> arguments_;
  Py_ssize_t result_count_;
  std::vector<Other> results_;
};

class PyFunctionRecording {
 public:
  PyFunctionRecording(const py::list& list, bool may_move, client::RecordedCalls calls) {
    Values arguments = take_apart(list);
    others_ = std::move(arguments.others);
    recording_ = std::make_unique<FunctionRecording>(std::move(arguments.tensors), may_move, calls);
  }

  // None: there was no call.
  std::unique_ptr<PyFunction> finish(const py::list& list) {
    TORCH_CHECK(recording_ != nullptr, "the recording has ended");
    Values results = take_apart(list);
    const std::unique_ptr<FunctionRecording> recording = std::move(recording_);
    std::unique_ptr<Function> function = recording->finish(results.tensors);
    if (function == nullptr)
      return nullptr;
    results.tensors.clear();
    return std::make_unique<PyFunction>(std::move(function), std::move(others_),
                                        std::move(results));
  }

  void abandon() { recording_.reset(); }

 private:
  std::vector<Other> others_;
  std::unique_ptr<FunctionRecording> recording_;
};

}  // namespace

void define_graphs(py::module& module) {
  py::class_<Graph>(module, "Graph")
      .def(py::init<>())
      .def("_begin", torch::wrap_pybind_function(&Graph::begin))
      .def("_end", torch::wrap_pybind_function_no_gil(&Graph::end))
      .def("_abandon", torch::wrap_pybind_function(&Graph::abandon))
      .def("replay", torch::wrap_pybind_function_no_gil(&Graph::replay))
      .def("reset", torch::wrap_pybind_function_no_gil(&Graph::reset))
      .def_property_readonly("_is_recording", &Graph::is_recording)
      .def_property_readonly("_is_captured", &Graph::is_captured)
      .def_property_readonly("_calls", &Graph::calls)
      .def("_describe_calls", torch::wrap_pybind_function(&Graph::describe_calls));
  py::class_<PyFunction>(module, "Function")
      .def("__call__", torch::wrap_pybind_function(&PyFunction::call))
      .def_property_readonly("calls", &PyFunction::calls);
  py::class_<PyFunctionRecording>(module, "FunctionRecording")
      .def(py::init(torch::wrap_pybind_function(
               [](const py::list& arguments, bool may_move, bool is_of_thread) {
                 return std::make_unique<PyFunctionRecording>(
                     arguments, may_move,
                     is_of_thread ? client::RecordedCalls::kOfUsersThread
                                  : client::RecordedCalls::kOfThisThread);
               })),
           py::arg("arguments"), py::arg("may_move"), py::arg("is_of_thread") = false)
      .def("finish", torch::wrap_pybind_function(&PyFunctionRecording::finish))
      .def("abandon", torch::wrap_pybind_function(&PyFunctionRecording::abandon));
  module.def("is_recording", [] { return client::current_recording() != nullptr; });
  module.def("register_graphs", torch::wrap_pybind_function(&client::register_graphs));
}

}  // namespace torch_remote::bindings
