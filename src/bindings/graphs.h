#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// Graph, and whether this thread captures one.
void define_graphs(pybind11::module& module);

}  // namespace torch_remote::bindings
