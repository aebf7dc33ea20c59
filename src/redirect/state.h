#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/python_headers.h>

#include "redirect/policy.h"

namespace torch_remote::redirect {

// What is in force in this process. Reading needs neither GIL nor lock; changing needs the GIL.
Situation situation();
void set_situation(const Situation& changed);

// The override is on if "cpu:-1" turned it on, or while a scope is open.
void set_toggled(bool on);
void change_scopes(int by);

// What devices of the accelerator are called when the user reads them back: CUDA or MPS, as
// TorchDevice.enable(read_as=...) says. CPU: as they are.
c10::DeviceType reads_as();
void set_reads_as(c10::DeviceType type);

// The accelerator in use as torch names it. CPU if there is none.
c10::DeviceType accelerator_type();

Kind kind_of(c10::DeviceType type);
c10::DeviceType type_of(Kind kind);

// The device of a decision, with the current index filled in.
c10::Device device_of(const Decision& decision);

// The torch.device object of a device, borrowed: one for each device, kept for ever. Needs the GIL.
PyObject* object_of(c10::Device device);

// `function` counts the devices again and changes the situation: machines connect while a program
// runs. Both need the GIL.
void set_recount(PyObject* function);
void recount();

}  // namespace torch_remote::redirect
