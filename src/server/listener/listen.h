#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "server/session/lifetime.h"
#include "server/session/serve.h"

namespace torch_remote::server {

constexpr size_t kMaxHalfOpen = 32;  // connections without a preamble

// Note [The listener is small]
//
// One thread accepts connections and reads their 32-byte preamble, which is never encrypted. It
// forks a process for each new session and passes other connections to the process of the session
// that they resume: TLS and authentication happen there (decision 0010). It never computes and
// never asks CUDA: after one OpenMP region its children would hang, and after a query for CUDA
// devices CUDA would fail in them. libtorch is loaded here, so that a session begins within
// milliseconds. It decodes only the preamble, so that no bytes can end it.
//
// Prints "listening on URL" on standard output when ready, with the URL for clients. Returns when a
// signal or a limit ends the server; the sessions have been told to end. Throws
// std::invalid_argument or ConnectionError when it cannot listen. `metrics`: a unix:// URL that
// sends the metrics to every connection; empty: none.
void listen(const std::string& url, const std::string& metrics, const ServeOptions& options,
            const LifetimeLimits& limits);

}  // namespace torch_remote::server
