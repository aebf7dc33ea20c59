#pragma once

#include <pybind11/pybind11.h>

namespace torch_remote::bindings {

// How the client raises our exceptions, releases the GIL while it waits, and notices Ctrl-C.
void install_python_hooks();

// The classes raised: RemoteError, SessionLost, ProtocolError, ConnectionError.
void set_exception_types(const pybind11::object& remote, const pybind11::object& lost,
                         const pybind11::object& protocol, const pybind11::object& connection);

}  // namespace torch_remote::bindings
