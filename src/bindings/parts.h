#pragma once

#include <pybind11/pybind11.h>

// The parts of torch_remote._C, each in a file of its own, which module.cpp puts together.

namespace torch_remote::bindings {

// distributed.cpp: open_process_group(), torch.distributed's backend `remote`.
void define_distributed(pybind11::module_& module);

// files.cpp: what python/torch_remote/_files.py is made of.
void define_files(pybind11::module_& module);

// graphs.cpp: Graph, FunctionRecording, and whether this thread captures one.
void define_graphs(pybind11::module_& module);

// memory.cpp: what python/torch_remote/_memory.py and _snapshot.py are made of.
void define_memory(pybind11::module_& module);

// reads.cpp: PendingRead and DoneSignal, which python/torch_remote/_reads.py is made of.
void define_reads(pybind11::module_& module);

// steps.cpp: what python/torch_remote/_optimizers.py is made of: what a step finds, and what it
// restores.
void define_steps(pybind11::module_& module);

// --- python_hooks.cpp

// Gives the client functions to raise our exceptions, release the GIL and notice Ctrl-C.
void install_python_hooks();

// At exit, after no call takes the GIL any more: waits for the threads that were about to take it.
void let_gil_takers_pass();

// The exception classes: by client::ErrorClass; for a failed call by wire::ErrorKind, and PyTorch's
// local class for each kind.
void set_exception_types(const pybind11::tuple& classes, const pybind11::tuple& kinds,
                         const pybind11::tuple& local);

// client::PythonHooks::take_back, with the session's address.
void set_take_back(pybind11::object function);

// client::Machines::Start: called with the index of the device.
void set_start(pybind11::object function);

// client::PythonHooks::warn: show(is_deprecation, text, file, line, prints) -> bool.
void set_show_warning(pybind11::object function);

// client::PythonHooks: begin_progress(bytes, is_upload) -> bool, update_progress, end_progress.
void set_progress_hooks(pybind11::object begin, pybind11::object update, pybind11::object end);

}  // namespace torch_remote::bindings
