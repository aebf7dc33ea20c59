#pragma once

#include <cstddef>
#include <span>

// The executor without PyTorch's kernels, which are slow and not what is tested. In place of each
// operator a stub reads and writes the first and last byte of every tensor, then does what a kernel
// might: returns fitting results, others, views or undefined tensors, resizes `out`, or throws.
//
// The server is unchanged: this thread includes a dispatch key with a fallback. Operators that the
// server itself calls (copies, empty tensors) run as they are, unless they are large.
namespace torch_remote::fuzz {

// Each byte decides what one call does; repeated from the begin. Empty: every call does well.
void set_stub_choices(std::span<const std::byte> choices);

// Call once, in the thread that runs the server.
void use_stub_kernels();

// In place of use_stub_kernels(): PyTorch's kernels run, and `observer` is told of each call of the
// server's: its name before the kernel, nullptr after it, also after a kernel that throws.
using Observer = void (*)(const char* name);
void use_real_kernels(Observer observer);

}  // namespace torch_remote::fuzz
