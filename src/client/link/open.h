#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "client/link/endpoint.h"

namespace torch_remote::client {

// How to reach a server: `local` starts a child over a socket pair, with these options; `unix://`,
// `tcp://` and `tls://` dial. With the delay that TORCH_REMOTE_NET asks for. Throws
// std::invalid_argument for a bad URL, or for files of tls:// that cannot be used. Does not fill in
// the token; without one, a Unix socket must be of this user or of root: check_server_user().
Endpoint endpoint_to(const std::string& url, const std::string& server_path,
                     std::vector<std::string> embedded_options, bool has_token);

// Through a command whose standard input and output are the connection (`ssh host torch-remote
// serve --stdio`), run again after a loss. Gets no signals of our terminal. `url` is for messages.
Endpoint endpoint_through(std::string url, std::vector<std::string> command);

// TORCH_REMOTE_TOKEN_FILE, else TORCH_REMOTE_TOKEN, else empty. A file that other users can read is
// refused for a server beyond loopback, and warned of for others.
std::string token_from_environment(const std::string& url);

// Whether the server of this URL may be on another machine. std::invalid_argument for a bad URL.
bool is_beyond_loopback(const std::string& url);

// The server that `local` starts: a child of this process, over a socket pair. `path` is its
// program; it gets these options. The child is started when the session opens. On macOS there is no
// server yet, and opening throws ConnectionError.
Endpoint embedded_server(const std::string& path, std::vector<std::string> options);

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
