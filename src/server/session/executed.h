#pragma once

#include "server/session/serve.h"

namespace torch_remote::server {

// The process of a session that a listener has executed: Note [Executed sessions] in
// server/session/handover.h. Loads what a session needs, waits for its client and serves it. Never
// returns. `options` has no token.
[[noreturn]] void serve_executed(const ServeOptions& options);

}  // namespace torch_remote::server
