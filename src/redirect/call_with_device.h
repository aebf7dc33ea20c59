#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/method.h"

namespace torch_remote::redirect {

// Calls a hooked function with another device. `named` is the device in `kwargs`, if there is one.
// Needs the GIL.
//
// The interpreter makes a dict for each call; nobody else sees it, so the device is replaced in it
// for the call, and put back for a C caller that keeps its dict. Another dict is copied.
PyObject* call_with_device(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* device, PyObject* named = nullptr);

}  // namespace torch_remote::redirect
