#pragma once

#include <cstdint>
#include <string_view>

#include <c10/core/Device.h>
#include <torch/csrc/python_headers.h>

#include "redirect/policy.h"
#include "redirect/ref.h"

namespace torch_remote::redirect {

// Counts redirects by the line of the user's program that caused them. All need the GIL.

enum class Log : uint8_t { kQuiet, kNewSites, kEveryCall };

// `function(api, asked, used, reason, file, function, line, is_new)` is called as `log` says. The
// reason is empty if it is evident.
void set_log(Log log, PyObject* function);

// Folders whose frames are not the user's.
bool set_library_folders(PyObject* folders);

// The same text at an address that is the same for every caller, and lives for ever.
const char* intern(std::string_view api);

// A place in the user's program, where something was redirected. Lives for ever.
struct Site;

// Counts one more redirect there, and logs it, which may run any Python code. Redirects that the
// log's own handlers cause are counted only.
void count(Site& site);

// Whether the code is of torch or of this package, and not the user's.
bool is_library(PyCodeObject* code);

// Whether a library has made the code from text, such as a lambda of torch.compile or __init__ of a
// dataclass: it has no line that can be looked up. `python -c` has its program from text too.
bool is_generated(PyCodeObject* code, PyObject* globals);

// The frame of the library's function that the user's program has called, if one runs now: the
// outermost of the library frames on top. Null otherwise.
Ref called_library_frame();

// The line of the user's program that runs now. Without a code outside Python.
struct UserLine {
  Ref code;
  int number = 0;
};

UserLine user_line();

// `api` lives for ever. Null where there is no site: outside Python, or if there are too many.
Site* note(const char* api, const Request& asked, c10::Device used, Reason reason);

// A list of (file, function, line, api, asked, used, reason, count); null with a Python error.
PyObject* list_sites();

// How many redirects are not in the list, because there were too many sites.
uint64_t count_left_out();

}  // namespace torch_remote::redirect
