#pragma once

#include <cstdint>
#include <optional>

#include "marshal/context.h"

namespace torch_remote::client {

// Note [Whose call]
//
// A failed call stops the thread of the user's program that made it (Note [Fail-stop] in
// wire/messages.h), so every call has a thread. Threads have our own numbers, from 1, never reused.
// Calls of autograd's worker threads belong to the thread that called backward(): during a backward
// its caller's number is in c10::ThreadLocalDebugInfo, which autograd passes to its workers. If C++
// called the backward, the calls are the workers' own.

// The thread that this thread's calls belong to. On the path of every call.
uint64_t current_thread();

// The settings of that thread; in a backward, those when it was called. Nothing if C++ called the
// backward. On the path of every call.
std::optional<marshal::ThreadSettings> current_settings();

// The thread with this number has ended.
bool has_ended(uint64_t thread);

// This thread enters a backward, and leaves it. In pairs; they may be nested.
void enter_backward();
void leave_backward();

}  // namespace torch_remote::client
