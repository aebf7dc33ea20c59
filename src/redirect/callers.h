#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/policy.h"

namespace torch_remote::redirect {

// Whose call it is: the module of the Python frame that calls into torch limits the policy. All
// functions need the GIL.

// A dict from the name of a module to "off", "foreign" or "full". The longest name that is the
// caller's or a package above it decides; other callers get the full policy.
bool set_callers(PyObject* table);

// In a worker of a DataLoader cpu and no device stay. `function` says whether this process is one;
// it is asked only in child processes.
void set_worker_check(PyObject* function);
void mark_child_process();
bool is_child_process();

Policy caller_limit();

// Whether torch itself calls.
bool is_called_by_torch();

}  // namespace torch_remote::redirect
