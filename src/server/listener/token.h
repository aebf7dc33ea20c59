#pragma once

#include <string>

namespace torch_remote::server {

// The token in a file, without white space around it; "~/x" is in the user's home. A file that is not there is made: 256 random
// bits in hex, for its owner only. Warns when others may read it. Throws std::runtime_error with a
// sentence for the user.
std::string read_or_make_token(const std::string& path);

}  // namespace torch_remote::server
