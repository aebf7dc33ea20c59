#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// What becomes of an error of a hooked call. Both need the GIL.

// `function(error, attempt)` returns None (the error stays), True (call once more) or another
// exception to raise instead.
void set_error_handler(PyObject* function);

// A RuntimeError is set. True: the error is cleared, and the caller tries again.
bool should_try_again(int attempt);

}  // namespace torch_remote::redirect
