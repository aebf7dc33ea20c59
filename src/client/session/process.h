#pragma once

#include <chrono>

// This process: forks, environment.
namespace torch_remote::client {

// True in the child of a process that had a session: nothing remote may be touched there.
bool in_forked_child();
[[noreturn]] void refuse_in_forked_child();
// From now on a fork makes its child a "bad" one, which calls `abandon`. Idempotent.
void watch_forks(void (*abandon)());

// TORCH_REMOTE_KEEPALIVE, else the default.
std::chrono::milliseconds keepalive_limit();

// TORCH_REMOTE_PATIENCE, else 60 s: how long a session tries to come back to its server. 0: not at all.
std::chrono::milliseconds resume_patience();

// TORCH_REMOTE_BLOCKING=1 (anything but 0): every call waits.
bool is_blocking();

// Threads that outlive the interpreter's shutdown (daemon threads) have nobody left to tell an error to: they
// sleep here until the process ends. The main thread returns.
void park_if_exiting();

// Set when the interpreter is going down: deleters do nothing any more.
void mark_exiting();
bool is_exiting();

}  // namespace torch_remote::client
