#pragma once

#include <torch/csrc/python_headers.h>

#include "redirect/policy.h"

namespace torch_remote::redirect {

// What a device argument asks for: a string, a torch.device, an int (a CUDA index), None or null.
// Everything else is kOther. Never raises.
Request read_request(PyObject* device);

// The torch.device to use instead of what was asked, borrowed; null: as asked. Notes the call site,
// and toggles the override for "cpu:-1". Needs the GIL. `api` lives for ever.
PyObject* redirect(const Request& request, const char* api, Policy limit = Policy::kFull);

// Whether a call of this kind would be redirected if the user made it. Cheap.
bool may_redirect(const Request& request);

}  // namespace torch_remote::redirect
