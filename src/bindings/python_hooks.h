#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// How the client raises our exceptions, releases the GIL while it waits, and notices Ctrl-C.
void install_python_hooks();

// At exit, when no call of ours takes the GIL any more: waits for those threads that were about to.
void let_gil_takers_pass();

// The classes raised: those of client::ErrorClass; for a failed call those of wire::ErrorKind, and what
// PyTorch raises for them locally; each in order.
void set_exception_types(const pybind11::tuple& classes, const pybind11::tuple& kinds,
                         const pybind11::tuple& local);

// client::PythonHooks::take_back, with the session's address.
void set_take_back(pybind11::object function);

}  // namespace torch_remote::bindings
