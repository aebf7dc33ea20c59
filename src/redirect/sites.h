#pragma once

#include <cstdint>

#include <c10/core/Device.h>
#include <torch/csrc/python_headers.h>

#include "redirect/policy.h"

namespace torch_remote::redirect {

// Counts redirects by the line of the user's program that caused them. All need the GIL.

enum class Log : uint8_t { kQuiet, kNewSites, kEveryCall };

// `function(api, asked, used, reason, file, function, line, is_new)` is called as `log` says.
void set_log(Log log, PyObject* function);

// Folders whose frames are not the user's.
bool set_library_folders(PyObject* folders);

// A place in the user's program, where something was redirected. Lives until clear_sites().
struct Site;

// Counts one more redirect there, and logs it.
void count(Site& site);

// Whether the code is of torch or of this package, and not the user's.
bool is_library(PyCodeObject* code);

// How often clear_sites() was called: a site that was kept is gone when this changes.
uint64_t generation();

// `api` lives for ever. Null where there is no site: outside Python, or if there are too many.
Site* note(const char* api, const Request& asked, c10::Device used, Reason reason);

// A list of (file, function, line, api, asked, used, reason, count); null with a Python error.
PyObject* list_sites();
void clear_sites();

}  // namespace torch_remote::redirect
