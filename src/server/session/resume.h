#pragma once

#include <string>

#include "base/fd.h"
#include "server/session/session.h"
#include "wire/handshake.h"

namespace torch_remote::server {

// How a client that comes back is known.
struct Identity {
  std::string id;
  wire::Secret secret;
  std::string token;  // empty: none is wanted
};

// Handshakes of clients that come back under way; more are dropped. Each has kHandshakeTime.
constexpr int kMaxReturning = 8;

// Starts the thread `tr-resume`, which takes connections that a listener, or a command that was run again
// (server/listener/stdio.h), passes over `control`, and gives those whose client proves that it is the session's own to the session. A thread of its own
// for each, so that a stranger who says nothing does not keep the client out. The session is never destroyed. When the
// listener is gone it ends: Session::expect_no_return().
void take_back_clients(Fd control, Session& session, const Identity& identity, std::string peer);

}  // namespace torch_remote::server
