#pragma once

#include <string>

namespace torch_remote::server {

// The file with this user's own certificate and its key, `torch-remote/tls.pem` in $XDG_STATE_HOME
// or ~/.local/state. A missing one is made, for its owner only: clients recognise the server by the
// certificate's pin, so all servers of a user keep the same one. Warns when others may read it.
// Throws std::runtime_error with a message for the user.
std::string find_or_make_certificate();

// The token in a file, trimmed; "~/x" is in the user's home. A missing file is made for its owner
// only, with 256 random bits in hex. Warns when others may read it or another user owns it. Throws
// std::runtime_error with a message for the user.
std::string read_or_make_token(const std::string& path);

}  // namespace torch_remote::server
