#pragma once

#include <string>
#include <vector>

#include "client/process/lines.h"

namespace torch_remote::bindings {

// Folders of torch and our packages, whose frames are skipped. Once, before the first call.
void set_library_folders(const std::vector<std::string>& folders);

// The file of a notebook's cell, which is about to run, and the cell's number.
void note_cell(const std::string& file, int cell);

// The topmost frame of this thread outside libraries. Needs no GIL. 0: there is none above the
// engine that runs a backward.
client::LineId find_line();

// The lines of all frames of this thread, libraries' too, the innermost first. Needs no GIL.
void find_stack(std::vector<client::LineId>& lines);

}  // namespace torch_remote::bindings
