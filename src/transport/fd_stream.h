#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// For a connected Unix socket, which gets kernel buffers of 4 MiB where allowed, or a TCP socket,
// which gets TCP_NODELAY. Never raises SIGPIPE.
std::unique_ptr<Stream> socket_stream(Fd socket, std::string peer);

// For pipes, such as standard input and output. The descriptors become non-blocking, with all
// others of the same open file (`2>&1`). Writes raise no SIGPIPE. `companion` is closed together
// with them, which tells the process at its other end that they are unused.
std::unique_ptr<Stream> pipe_stream(Fd incoming, Fd outgoing, std::string peer,
                                    Fd companion = Fd());

}  // namespace torch_remote::transport
