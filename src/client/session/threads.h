#pragma once

#include <cstdint>

namespace torch_remote::client {

// Note [Whose call]
//
// A failed call stops the thread of the user's program that made it (Note [Fail-stop] in
// wire/messages.h), so every call has one. Threads have numbers of our own, from 1, never used again.
// The calls that autograd's worker threads make belong to the thread that called that backward():
// while a backward runs its caller's number is in c10::ThreadLocalDebugInfo, which autograd hands on
// to its workers. A backward that was called from C++ has no caller with a number; the calls of its
// workers are then the workers' own.

// Whose calls this thread makes now. On the path of every call.
uint64_t current_thread();

// The thread with this number has ended.
bool has_ended(uint64_t thread);

// This thread enters a backward, and leaves it. In pairs; they may be nested.
void enter_backward();
void leave_backward();

}  // namespace torch_remote::client
