#pragma once

#include <cstddef>
#include <span>

// The executor without PyTorch's kernels: what they would do with hostile data is not what is tested, and takes any
// time. Where the server calls an operator, a stub looks at every tensor that it is given, reads and writes its first
// and its last byte, and then answers as a kernel might: with fitting results, with others, with views, with undefined
// tensors, with an `out` of another size, with an error.
//
// Nothing of the server is changed for it: a dispatch key with a fallback is included in this thread. The few
// operators that the server calls on its own account (copies, empty tensors) run as they are, unless they are large.
namespace torch_remote::fuzz {

// Goes through `choices` again and again; one decides what one call does. An empty list: all as they should be.
void set_stub_choices(std::span<const std::byte> choices);

// Call once, in the thread that runs the server.
void use_stub_kernels();

}  // namespace torch_remote::fuzz
