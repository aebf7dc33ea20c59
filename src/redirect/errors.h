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

}  // namespace torch_remote::redirect
