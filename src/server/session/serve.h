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
#include "wire/handshake.h"

namespace torch_remote::server {

struct ServeOptions {
  std::string token;  // empty: none is wanted
  std::string device = "auto";
  unsigned simulated_devices = 1;
  std::string call_log;  // a CallLog's prefix; empty: calls are not logged
  int parent_pid = 0;    // the session ends with that process; 0: with none
  std::chrono::milliseconds lease = std::chrono::minutes(10);  // where SessionPlace has a control
  std::chrono::milliseconds keepalive = transport::Connection::Options().keepalive;
  size_t max_sessions = 64;          // of a listener
  uint64_t max_memory = UINT64_MAX;  // that a session's storages hold
  LifetimeLimits limits;
  std::vector<std::string> libraries;  // whose operators clients may call too
  std::optional<SchemaFile> schemas;   // the version that the server plays; none: its own
  pid_t listener = 0;                  // watches the limits while it lives; else the session does
};

// What whoever starts a session's process gives it: its number, where connections of a client that comes back are
// passed to it (by a listener, or by a command that is run again), and where to leave its figures and its last calls.
struct SessionPlace {
  uint64_t route = 0;
  Fd control;
  SessionPage* page = nullptr;  // null: nobody looks
};

uint64_t new_session_route();

// How a session's process ends; the listener reads it.
enum class SessionExit : int {
  kClosed = 0,
  kFailed = 1,  // the client broke the protocol, or the server could not start
  kNotAuthenticated = 3,
};

// The whole life of a session in a process of its own: handshake, calls, end. Never returns: it
// leaves with _exit, even in the middle of an operator: within a second of the client's closing, or
// of the end of the client's process on the same machine; else when the lease is over.
[[noreturn]] void serve_session(std::unique_ptr<transport::Stream> stream,
                                const ServeOptions& options,
                                const std::optional<wire::Preamble>& preamble, Activity& activity,
                                SessionPlace place);

}  // namespace torch_remote::server
