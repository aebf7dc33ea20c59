#pragma once

#include <cstdint>

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Note [Memory of the CPU]
//
// Where the CPU is the device in use, every allocation of a CPU tensor passes here, so that running
// out of memory reads as on CUDA for every operator: what Python can free is freed, the allocation
// is tried once more, and the error is an OutOfMemoryError. A limit, if one is set, is that of
// torch.cuda.set_per_process_memory_fraction(). Without a limit nothing is counted, and the memory
// is that of torch's own allocator, with nothing around it.

// `on_shortage(text, attempt)` is called with the error of a failed allocation: for attempt 0 it
// frees what it can, for attempt 1 it returns the text of the OutOfMemoryError. All need the GIL.
void install_host_allocator(PyObject* on_shortage);
void remove_host_allocator();

// `before` are the bytes that count already, of memory that was allocated earlier. If `allowed` is
// 0, there is no limit.
void set_host_limit(uint64_t allowed, uint64_t before);

}  // namespace torch_remote::redirect
