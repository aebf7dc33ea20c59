#include "redirect/hooks.h"

namespace torch_remote::redirect {
namespace {

PyCFunctionWithKeywords original = nullptr;

}  // namespace

void set_original_to(PyCFunctionWithKeywords function) {
  original = function;
}

PyObject* call_to(PyObject* tensor, PyObject* args, PyObject* kwargs) {
  return original(tensor, args, kwargs);
}

}  // namespace torch_remote::redirect
