#include "redirect/generator_state.h"

#include <torch/csrc/Exceptions.h>

#include "redirect/host_copies.h"
#include "redirect/ref.h"
#include "redirect/unary.h"

namespace torch_remote::redirect {
namespace {

Unary original;

PyObject* set_state(PyObject* self, PyObject* state) {
  HANDLE_TH_ERRORS
  if (!needs_host_copy(state))
    return original.call_original(self, state);
  const Ref host = make_host_copy(state);
  return host ? original.call_original(self, host.get()) : nullptr;
  END_HANDLE_TH_ERRORS
}

}  // namespace

bool hook_set_state(PyObject* descriptor) {
  return original.hook(descriptor, set_state);
}

void unhook_set_state() {
  original.unhook();
}

}  // namespace torch_remote::redirect
