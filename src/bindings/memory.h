#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// Adds what python/torch_remote/_memory.py and _snapshot.py are made of.
void define_memory(pybind11::module_& module);

}  // namespace torch_remote::bindings
