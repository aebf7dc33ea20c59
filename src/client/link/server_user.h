#pragma once

#include "base/error.h"
#include "base/fd.h"

namespace torch_remote::client {

// The server's process belongs to another user.
class AnotherUser : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// For a server that proves nothing, because there is no token: whoever listens on the path of a
// Unix socket first gets the tensors. Throws AnotherUser, which names both users, unless the server
// runs as this user or as root. `socket` is a connected Unix socket.
void check_server_user(const Fd& socket);

}  // namespace torch_remote::client
