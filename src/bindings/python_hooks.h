#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// How the client raises our exceptions, releases the GIL while it waits, and notices Ctrl-C.
void install_python_hooks();

// The classes raised: those of client::ErrorClass, and for a failed call those of wire::ErrorKind, each in order.
void set_exception_types(const pybind11::tuple& classes, const pybind11::tuple& kinds);

}  // namespace torch_remote::bindings
