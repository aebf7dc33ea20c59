#pragma once

#include <string>

#include "server/listener/session_program.h"
#include "server/session/serve.h"

namespace torch_remote::server {

// Throws std::invalid_argument, for the user, if a server must not listen there.
void check_address(const std::string& url, bool has_token);
// The same for --metrics.
void check_metrics_address(const std::string& url);

// Note [The listener is small]
//
// One thread accepts connections and reads their 32-byte preamble, which is never encrypted, and
// looks at a new client's first message (Note [Who gets a process] in
// server/listener/half_open.h). It executes a process for each new session (Note [Executed
// sessions] in server/session/handover.h)
// and passes other connections to the process of the session that they resume: TLS and
// authentication happen there (decision 0010). It never computes and never asks CUDA. It decodes
// only the preamble and a HELLO, and takes what sessions tell it for a stranger's words, so that no
// bytes can end it.
//
// Anybody who can connect can cause lines of the log, so that their number is limited (LimitedLog).
//
// New clients wait in a queue for a process that is ready, and are told that they wait
// (wire/handshake.h). Processes that are starting are limited in number (Spares), and the queue by
// `max_sessions`.
//
// Prints "listening on URL" on standard output when ready, with the URL for clients. Returns when a
// signal or a limit ends the server; the sessions have been told to end. Throws
// std::invalid_argument or ConnectionError when it cannot listen, and std::invalid_argument when
// the libraries or the device that the options name cannot be used. `metrics`: a unix:// URL that
// sends the metrics to every connection; empty: none.
void listen(const std::string& url, const std::string& metrics, ServeOptions options,
            SessionProgram program);

// Serves one connection over standard input and output. A new client gets a session here.
// If the client resumes (the command was run again by ssh, kubectl, …), the descriptors go to its
// session's process, and this one stays until they are closed. `only_resumes` refuses new clients.
//
// The session outlives the connection by its lease and takes connections from processes of the same
// user: Note [Relaunch] in server/listener/stdio.cpp. Never returns.
[[noreturn]] void serve_stdio(ServeOptions options, bool only_resumes);

}  // namespace torch_remote::server
