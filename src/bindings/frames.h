#pragma once

#include <string>
#include <vector>

#include "client/session/lines.h"

namespace torch_remote::bindings {

// Folders whose frames are not the user's: those of torch and of our own packages. Once, before the first call.
void set_library_folders(const std::vector<std::string>& folders);

// The topmost frame of this thread that is not a library's. Needs no GIL. 0: there is none above the engine that
// runs a backward.
client::LineId find_line();

}  // namespace torch_remote::bindings
