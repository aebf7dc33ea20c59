#pragma once

#include <string>

// This process: forks, environment.
namespace torch_remote::client {

// True in the child of a process that had a session: nothing remote may be used there.
bool in_forked_child();
[[noreturn]] void refuse_in_forked_child();
// What the error says after that. Thread-safe.
void set_fork_advice(std::string advice);
// From now on, `abandon` is called in the child of a fork, where in_forked_child(). Idempotent.
void watch_forks(void (*abandon)());

// TORCH_REMOTE_BLOCKING=1 (anything but 0): every call waits.
bool is_blocking();

// During exit, sleeps until the process ends: for daemon threads. The main thread returns.
void park_if_exiting();

// Set when the interpreter shuts down: deleters do nothing from then on.
void mark_exiting();
bool is_exiting();

}  // namespace torch_remote::client
