#pragma once

#include <string>

namespace torch_remote::server {

// The token in a file, trimmed; "~/x" is in the user's home. A missing file is made for its owner
// only, with 256 random bits in hex. Warns when others may read it or another user owns it. Throws
// std::runtime_error with a message for the user.
std::string read_or_make_token(const std::string& path);

}  // namespace torch_remote::server
