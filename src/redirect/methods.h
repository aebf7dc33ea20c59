#pragma once

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// A hooked function: what it was, and its name in the log.
struct Method {
  PyCFunctionWithKeywords original = nullptr;
  const char* api = nullptr;
};

// What a hooked function does instead. Called with the GIL, may throw C++ exceptions.
using Body = PyObject* (*)(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs);

// The body of a kind:
//
// factory    makes a tensor; no device means the accelerator
// converter  the same, but follows a tensor among its first two arguments: torch.tensor, as_tensor
// follower   follows its tensor unless a device is named: *_like, new_*
// draw       draws numbers for a tensor: torch.multinomial
// draw_in_place  the same: Tensor.normal_
// to         the first argument or `device=` may be a device
// cuda, cpu, pin_memory, is_pinned, numpy, record_stream, type    methods of Tensor
// autocast   the first argument or `device_type=` may be the name of a type of devices
// autocast_flag  the same, and without a name CUDA is meant
// pack       the second argument, `lengths`, must be a tensor of the CPU
// parse_to   the function that Module.to calls first
//
// Null for another kind.
Body find_body(const char* kind);

// Calls a hooked function with another device. `named` is the device in `kwargs`, if there is one.
// Needs the GIL.
//
// The interpreter makes a dict for each call; nobody else sees it, so the device is replaced in it
// for the call, and put back for a C caller that keeps its dict. Another dict is copied.
PyObject* call_with_device(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* device, PyObject* named = nullptr);

// Hooks builtin functions and methods of torch: `ml_meth` in the PyMethodDef of each is replaced,
// so the function stays the same object, and TorchScript, dynamo and pickle notice nothing.
// All need the GIL.

// `kind` is a name of find_body(); `api` is the name in the log. Hooking a function
// twice does nothing the second time. False with a Python error.
bool hook_method(PyObject* function, const char* kind, const char* api);
void unhook_methods();

}  // namespace torch_remote::redirect
