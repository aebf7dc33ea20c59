#include "client/backend/profiler.h"

#include <pybind11/stl.h>

#include "bindings/parts.h"
#include "client/backend/profile_notes.h"
#include "client/process/memory_history.h"

namespace torch_remote::bindings {

void define_profiler(pybind11::module_& module) {
  module.def("has_profiler", client::has_profiler);
  module.def("take_profile_notes", client::take_profile_notes);
  module.def("profile_memory",
             [](bool is_on) { client::MemoryHistory::instance().set_profiled(is_on); });
}

}  // namespace torch_remote::bindings
