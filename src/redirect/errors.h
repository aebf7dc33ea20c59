#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// What becomes of an error of a hooked call. All need the GIL.

// `function(error, attempt)` returns None (the error stays), True (call once more) or another
// exception to raise instead.
void set_error_handler(PyObject* function);

// A RuntimeError or TypeError is set. True: the error is cleared, and the caller tries again.
bool should_try_again(int attempt);

// Marks that this thread makes a call again, as should_try_again() said.
class SecondTry {
 public:
  SecondTry();
  ~SecondTry();
  SecondTry(const SecondTry&) = delete;
  SecondTry& operator=(const SecondTry&) = delete;

 private:
  bool before_;
};

bool is_second_try();

// Which lines of the user's program made the large tensors that are alive, for errors that say
// where the memory went. Only calls that are hooked are known. All need the GIL.

// The result of a hooked call: noted if it is a new tensor of 1 MiB or more. Without memory for the
// note there is none.
void note_large(PyObject* result) noexcept;
void forget_large_tensors();

// (file, line, function) of the call that made the tensor's memory; None: not known.
PyObject* maker_of(PyObject* tensor);

}  // namespace torch_remote::redirect
