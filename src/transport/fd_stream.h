#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// A connected stream socket: Unix or one of socket_pair(), which get 4 MiB of kernel buffer each
// way if the kernel allows it, or TCP (made TCP_NODELAY). Never raises SIGPIPE.
std::unique_ptr<Stream> socket_stream(Fd socket, std::string peer);

// Two descriptors that are not sockets: pipes, as with `serve --stdio` or a child's standard
// streams. They become non-blocking, and so does every other descriptor of the same open file
// (`2>&1`). SIGPIPE is held back during each write, so that the process need not ignore it. `companion` is closed with
// them: whoever has its other end learns that they are not used any more.
std::unique_ptr<Stream> pipe_stream(Fd incoming, Fd outgoing, std::string peer,
                                    Fd companion = Fd());

}  // namespace torch_remote::transport
