#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// Adds what python/torch_remote/_optimizers.py is made of: what a step finds, and what it restores.
void define_steps(pybind11::module_& module);

}  // namespace torch_remote::bindings
