#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// Adds what python/torch_remote/_profiler.py is made of.
void define_profiler(pybind11::module_& module);

}  // namespace torch_remote::bindings
