#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "server/session/lifetime.h"
#include "server/session/serve.h"

namespace torch_remote::server {

constexpr size_t kMaxHalfOpen = 32;  // connections without a preamble; the oldest makes room

// Note [The listener is small]
//
// One thread that accepts connections, reads their 32-byte preamble, and forks a process for each
// session, or passes the connection to the process of the session that it is to resume. It never computes and asks nothing of CUDA: a parent that has run one OpenMP region
// makes its children hang, and one that has asked whether CUDA is there makes CUDA fail in them.
// libtorch is loaded, so that a session begins within milliseconds. No bytes can end it: it decodes
// nothing but the preamble.
//
// Prints "listening on URL" on standard output when ready. Returns when a signal or a limit ends
// the server; its sessions have then been told to end. Throws std::invalid_argument or
// ConnectionError when it cannot listen.
// `metrics`: a unix:// URL where whoever connects gets the figures; empty: nowhere.
void listen(const std::string& url, const std::string& metrics, const ServeOptions& options,
            const LifetimeLimits& limits);

}  // namespace torch_remote::server
