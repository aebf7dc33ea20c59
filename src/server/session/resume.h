#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "server/session/session.h"
#include "transport/tls_context.h"
#include "wire/handshake.h"

namespace torch_remote::server {

// How a session recognizes its client.
struct Identity {
  std::string id;
  wire::Secret secret;
  std::string resume_key;                            // with which its client proves itself
  std::shared_ptr<const transport::TlsContext> tls;  // null: connections are not encrypted
};

// Handshakes at the same time, each within kHandshakeTime. One more ends the oldest of the peer
// that has most: Note [Limits for each peer] in base/peer_limits.h. It ends none that has shown the
// proof of the route (wire/handshake.h), unless it has shown it too.
constexpr size_t kMaxReturning = 8;

// Starts the thread `tr-resume`. It takes connections from `control`, which a listener or a command
// that was run again (server/listener/stdio.cpp) sends, and resumes the session with a client that
// proves to be its own. Each handshake has its own thread, so that others cannot keep the client
// out. The session must never be destroyed. Without a listener: Session::expect_no_return().
void take_returning_clients(Fd control, Session& session, const Identity& identity,
                            std::string peer);

}  // namespace torch_remote::server
