#pragma once

#include <string>

#include "base/fd.h"

namespace torch_remote {

// A new file for its owner only, to append to: who gets the descriptor does not write over what is
// there. Empty on failure, with errno set.
Fd make_new_file(const std::string& path);

}  // namespace torch_remote
