#include "client/backend/graphs.h"

#include <pybind11/stl.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/parts.h"
#include "client/process/recording.h"
#include "client/programs/graph.h"

namespace py = pybind11;

namespace torch_remote::bindings {

void define_graphs(py::module& module) {
  using client::Graph;
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
  module.def("is_recording", [] { return client::current_recording() != nullptr; });
  module.def("register_graphs", torch::wrap_pybind_function(&client::register_graphs));
}

}  // namespace torch_remote::bindings
