#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/fd.h"
#include "base/session_page.h"
#include "server/executor/schema_file.h"
#include "server/session/lifetime.h"
#include "transport/connection.h"
#include "transport/stream.h"
#include "transport/tls_context.h"
#include "wire/handshake.h"

namespace torch_remote::server {

struct ServeOptions {
  std::string token;                                 // empty: clients need none
  std::shared_ptr<const transport::TlsContext> tls;  // null: connections are not encrypted
  std::string device = "auto";
  unsigned simulated_devices = 1;
  std::string call_log;  // prefix of the files of CallLog; empty: calls are not logged
  int parent_pid = 0;    // the session ends with that process; 0: none
  std::chrono::milliseconds lease = std::chrono::minutes(10);  // with SessionPlace::control
  std::chrono::milliseconds keepalive = transport::Connection::Options().keepalive;
  size_t max_sessions = 64;          // of a listener
  uint64_t max_memory = UINT64_MAX;  // for the storages of one session
  LifetimeLimits limits;
  std::vector<std::string> libraries;  // whose operators clients may call too
  std::optional<SchemaFile> schemas;   // version of torch that the server imitates; none: its own
  pid_t listener = 0;                  // watches the limits while it lives; then the session does
};

// What the process of a session gets from its starter: its number, the socket over which it gets
// connections of a client that resumes, and memory for its figures and last calls.
struct SessionPlace {
  uint64_t route = 0;
  Fd control;
  SessionPage* page = nullptr;  // null: not published
};

uint64_t new_session_route();

// Exit code of a session's process; the listener reads it.
enum class SessionExit : int {
  kClosed = 0,
  kFailed = 1,  // the client broke the protocol, or the server could not start
  kNotAuthenticated = 3,
};

// A session in its own process: handshake, calls, end. Never returns. It calls _exit(), even while
// an operator runs: within a second after the client closes or, on the same machine, the client's
// process ends; otherwise when the lease is over.
[[noreturn]] void serve_session(std::unique_ptr<transport::Stream> stream,
                                const ServeOptions& options,
                                const std::optional<wire::Preamble>& preamble, Activity& activity,
                                SessionPlace place);

}  // namespace torch_remote::server
