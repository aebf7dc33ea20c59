#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Hooks methods of torch.Generator. All need the GIL.
//
// torch's default generator is the CPU's. Under the full policy the accelerator draws the numbers
// of a program that never names it, so the default generator stands for the accelerator's too: a
// seed seeds both, a state is that of both (Note [A joined state]), and the initial seed and a
// clone are the accelerator's. Under the CPU override, and in processes that may not use the
// accelerator, it is the CPU's alone.
//
// Generator.set_state wants a tensor of the CPU: a file of random states that was loaded with
// map_location="cpu" is on the accelerator under the full policy.

// `method` is get_state, set_state, manual_seed, seed, initial_seed, clone_state or __setstate__.
// False with a Python error.
bool hook_generator(PyObject* descriptor, const char* method);

// Hooks the setter of Tensor.data, to which a joined state may be given. False with a Python error.
bool hook_data(PyObject* descriptor);

void unhook_generators();

// `function()` returns what has manual_seed(), initial_seed(), get_rng_state(), set_rng_state()
// and clone_state() of the accelerator, or None in a process that may not use it; see
// TorchDevice._generators.
void set_random(PyObject* function);

}  // namespace torch_remote::redirect
