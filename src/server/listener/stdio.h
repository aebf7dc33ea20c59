#pragma once

#include "server/session/serve.h"

namespace torch_remote::server {

// One connection over standard input and output. A client that is new gets a session in this process. One that comes
// back (the command was run again: by ssh, kubectl, …) gets its own: the descriptors go to that session's process,
// and this one stays until the session has left them. `only_resumes`: a new client is refused.
//
// The session outlives the connection by its lease. Its process takes connections under a name that it has in
// the kernel, for processes of the same user: Note [Relaunch] in server/listener/stdio.cpp. Never returns.
[[noreturn]] void serve_stdio(const ServeOptions& options, bool only_resumes);

}  // namespace torch_remote::server
