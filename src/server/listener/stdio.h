#pragma once

#include "server/session/serve.h"

namespace torch_remote::server {

// Serves one connection over standard input and output. A new client gets a session here.
// If the client resumes (the command was run again by ssh, kubectl, …), the descriptors go to its
// session's process, and this one stays until they are closed. `only_resumes` refuses new clients.
//
// The session outlives the connection by its lease and takes connections from processes of the same
// user: Note [Relaunch] in server/listener/stdio.cpp. Never returns.
[[noreturn]] void serve_stdio(ServeOptions options, bool only_resumes);

}  // namespace torch_remote::server
