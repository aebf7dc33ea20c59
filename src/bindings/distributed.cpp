#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/parts.h"
#include "client/backend/process_group.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

c10::intrusive_ptr<c10d::Backend> open_process_group(const StorePtr& store, int rank, int size,
                                                     int64_t timeout_ms, int device) {
  return c10::make_intrusive<client::ProcessGroup>(
      *store, static_cast<c10::DeviceIndex>(device),
      client::GroupOptions{rank, size, std::chrono::milliseconds(timeout_ms)});
}

}  // namespace

void define_distributed(py::module_& module) {
  module.def("open_process_group", torch::wrap_pybind_function_no_gil(open_process_group));
}

}  // namespace torch_remote::bindings
