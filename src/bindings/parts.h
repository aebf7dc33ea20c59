#pragma once

#include <pybind11/pybind11.h>

// The parts of torch_remote._C, each in a file of its own, which module.cpp puts together.
namespace torch_remote::bindings {

// distributed.cpp: open_process_group(), torch.distributed's backend `remote`.
void define_distributed(pybind11::module_& module);

// files.cpp: what python/torch_remote/_files.py is made of.
void define_files(pybind11::module_& module);

// graphs.cpp: Graph, and whether this thread captures one.
void define_graphs(pybind11::module_& module);

// memory.cpp: what python/torch_remote/_memory.py and _snapshot.py are made of.
void define_memory(pybind11::module_& module);

// profiler.cpp: what python/torch_remote/_profiler.py is made of.
void define_profiler(pybind11::module_& module);

// reads.cpp: PendingRead and DoneSignal, which python/torch_remote/_reads.py is made of.
void define_reads(pybind11::module_& module);

// steps.cpp: what python/torch_remote/_optimizers.py is made of: what a step finds, and what it
// restores.
void define_steps(pybind11::module_& module);

}  // namespace torch_remote::bindings
