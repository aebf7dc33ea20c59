#pragma once

#include <cstdint>

namespace torch_remote::redirect {

// Note [Memory of the CPU]
//
// Where the CPU is the device in use, every allocation of a CPU tensor passes here, so that running
// out of memory is an OutOfMemoryError for every operator, as on CUDA. A limit, if one is set, is
// that of torch.cuda.set_per_process_memory_fraction(). Without a limit nothing is counted, and the
// memory is that of torch's own allocator, with nothing around it.
//
// No Python runs here: torch allocates while it holds locks for which other threads wait with the
// GIL. So only hooked calls collect Python's garbage and are tried again (errors.h).

// Puts the allocator before torch's own, and takes it away. Both need the GIL.
void install_host_allocator();
void remove_host_allocator();

// How many bytes the process may have, in tensors and otherwise; 0: no limit. What it has now, and
// each tensor made from now on, count.
void set_host_limit(uint64_t allowed);

}  // namespace torch_remote::redirect
