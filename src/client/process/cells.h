#pragma once

#include <string>

namespace torch_remote::client {

// From now on lines of this file are of this cell of a notebook, the 3 of "In [3]", which is about
// to run. Its lines are described as "cell 3, line 1" (lines.h). Thread-safe.
void note_cell(const std::string& file, int cell);

}  // namespace torch_remote::client
