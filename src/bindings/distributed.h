#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// open_process_group(): torch.distributed's backend `remote`.
void define_distributed(pybind11::module_& module);

}  // namespace torch_remote::bindings
