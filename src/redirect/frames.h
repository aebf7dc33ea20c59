#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Where this thread's Python code is. Borrowed: valid until the call returns.
struct TopFrame {
  PyCodeObject* code = nullptr;  // null: unknown, also for versions of Python not known here
  PyObject* globals = nullptr;
  int offset = 0;  // of the instruction, in bytes
};

// The innermost frame, without making a frame object of it, which takes longer than a lookup.
// Needs the GIL.
TopFrame top_frame();

}  // namespace torch_remote::redirect
