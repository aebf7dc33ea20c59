#pragma once

#include <string>

namespace torch_remote::client {

class Session;

// The IP address at which other servers reach this session's server: TORCH_REMOTE_PEER_ADDRESS,
// else the one at which this client reaches it, which is the loopback address for an embedded
// server, a Unix socket and a command. Throws ConnectionError when the host is unknown.
std::string server_address(Session& session);

}  // namespace torch_remote::client
