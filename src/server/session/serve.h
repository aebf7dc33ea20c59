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
#include "server/cache/upload_cache.h"
#include "server/device/devices.h"
#include "server/files/shared_folders.h"
#include "server/operators/operators.h"
#include "server/session/handshake.h"
#include "server/session/lifetime.h"
#include "server/session/sandbox.h"
#include "transport/connection.h"
#include "transport/stream.h"
#include "transport/tls_context.h"
#include "wire/handshake.h"

namespace torch_remote::server {

struct TlsFiles {
  std::string cert;
  std::string key;
  std::string client_ca;
};

struct ServeOptions {
  std::string token;                                 // empty: clients need none
  std::shared_ptr<const transport::TlsContext> tls;  // null: connections are not encrypted
  TlsFiles tls_files;                                // of which `tls` was made
  std::string device = "auto";
  unsigned simulated_devices = 1;
  std::string call_log;  // prefix of the files of CallLog; empty: calls are not logged
  int parent_pid = 0;    // the session ends with that process; 0: none
  std::chrono::milliseconds lease = std::chrono::minutes(10);  // with SessionSetup::control
  std::chrono::milliseconds keepalive = transport::Connection::Options().keepalive;
  size_t max_sessions = 64;             // of a listener
  size_t max_sessions_per_address = 0;  // 0: three quarters of them, but all for this machine
  uint64_t max_memory = UINT64_MAX;     // for the storages of one session
  LifetimeLimits limits;
  SandboxMode sandbox = SandboxMode::kAuto;
  bool is_stdio = false;      // clients come back by a named socket: Note [Relaunch]
  bool has_peers = false;     // sessions may open connections to those of other servers
  std::string peer_networks;  // of Networks: which ones; empty: those of this machine
  CacheOptions cache;
  std::vector<std::string> files;      // folders whose files clients may read, as absolute paths
  std::vector<std::string> libraries;  // whose operators clients may call too
  std::optional<SchemaFile> schemas;   // version of torch that the server imitates; none: its own
  std::string schema_path;             // the file of `schemas`
  pid_t listener = 0;                  // watches the limits while it lives; then the session does
};

// What sessions with these options need beyond what libtorch and CUDA do.
inline SandboxNeeds needs_of(const ServeOptions& options) {
  return {options.has_peers, options.max_memory != UINT64_MAX, options.is_stdio,
          options.device != "cpu", options.files};
}

// How a session and its client recognize each other. A session has no copy of the token once its
// client has proven that it knows it.
struct Credentials {
  wire::Secret secret{};   // for the client, to resume
  std::string resume_key;  // of wire::resume_key_without_token()
  MakeProofs make_proofs;  // empty: the client needs no token
};

// With a new secret. Takes the token out of its argument.
Credentials new_credentials(std::string token);

// What a session needs before its first call, and what may take long.
struct Prepared {
  // Loads the libraries, chooses the devices, and confines the process to what it needs from then
  // on: Note [The sandbox]. Throws std::invalid_argument with a message for the user.
  explicit Prepared(const ServeOptions& options);

  OperatorTable table;
  std::shared_ptr<const SharedFolders> files;  // null: the server has none
  Sandbox sandbox;
  Devices devices;
};

// What the process of a session gets from its starter.
struct SessionSetup {
  uint64_t route = 0;
  Fd control;                   // where connections of a client that resumes arrive; may be empty
  SessionPage* page = nullptr;  // null: figures and last calls are not published
  Credentials credentials;
  std::unique_ptr<const Prepared> prepared;  // null: it is prepared once its client is known
  std::unique_ptr<UploadCache> cache;        // null: uploads are not cached
  Fd call_log;                               // with `prepared`; empty: calls are not logged
  int64_t server_start = Activity::now();
  std::string host;  // own_host() of the client's connection
};

uint64_t new_session_route();

// A session in its own process: handshake, calls, end. Never returns. It calls _exit(), even while
// an operator runs: within a second after the client closes or, on the same machine, the client's
// process ends; otherwise when the lease is over.
[[noreturn]] void serve_session(std::unique_ptr<transport::Stream> stream,
                                const ServeOptions& options,
                                const std::optional<wire::Preamble>& preamble, SessionSetup setup);

// The process of a session that a listener has executed: Note [Executed sessions] in
// server/session/handover.h. Loads what a session needs, waits for its client and serves it. Never
// returns. `options` has no token.
[[noreturn]] void serve_executed(const ServeOptions& options);

}  // namespace torch_remote::server
