#pragma once

#include <cstdint>

namespace torch_remote::server {

// Note [Memory that the kernel limits]
//
// StorageTable counts storages against serve --max-memory, and an operator's result when it has
// been made. So on a CPU server the kernel keeps a limit too (RLIMIT_DATA): twice that much,
// because an upload is received before it is in its storage and kernels need memory meanwhile,
// beside what the process has before its client's first message and the stacks of the threads that
// a client may have started. An allocation beyond it fails, and the call is out of memory. The
// limit does not count shared memory and memory that grows as a stack does: the call filter refuses
// both (CallNeeds::limits_memory). Nor does it count memory that was made read-only; there the
// listener watches: Note [Limits that a session evades] in server/listener/excess.h.
//
// No limit counts page tables: 4 KiB for each 2 MiB in which one byte was touched. So there is a
// limit of address space too (RLIMIT_AS), with what malloc() reserves for each thread and 16 GiB,
// whose page tables have 32 MiB. Locks of parts of files are kernel memory as well: the call filter
// refuses them.
//
// On a CUDA server the driver reserves address space by the terabyte, which the limit would count.

// For this process, from now on; cannot be taken back. Throws std::system_error.
void limit_memory(uint64_t max_memory);

// Where memory is short, the kernel ends sessions before the listener and other programs.
void end_first_without_memory() noexcept;

}  // namespace torch_remote::server
