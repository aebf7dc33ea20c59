#include <pybind11/stl.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/parts.h"
#include "client/memory/downloads.h"

namespace py = pybind11;

namespace torch_remote::bindings {

using client::DoneSignal;
using client::PendingRead;

void define_reads(py::module_& module) {
  py::class_<DoneSignal, std::shared_ptr<DoneSignal>>(module, "DoneSignal")
      .def(py::init<>())
      .def("fileno", &DoneSignal::descriptor)
      .def("clear", &DoneSignal::clear);
  py::class_<PendingRead>(module, "PendingRead")
      .def("is_done", &PendingRead::is_done)
      .def("wait_for", torch::wrap_pybind_function([](const PendingRead& read, int64_t time_ms) {
             return read.wait_for(std::chrono::milliseconds(time_ms));
           }))
      .def("result",
           torch::wrap_pybind_function([](const PendingRead& read) { return read.result(); }))
      .def("signal_when_done", &PendingRead::signal_when_done);
  module.def("start_read", torch::wrap_pybind_function([](const at::Tensor& tensor) {
               return std::make_unique<PendingRead>(tensor);
             }));
}

}  // namespace torch_remote::bindings
