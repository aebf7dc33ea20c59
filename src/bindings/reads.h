#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// Adds `PendingRead` and `DoneSignal`: what python/torch_remote/_reads.py is made of.
void define_reads(pybind11::module_& module);

}  // namespace torch_remote::bindings
