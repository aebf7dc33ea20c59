#pragma once

#include <chrono>
#include <string>

#include <sys/types.h>

namespace torch_remote::server {

// Note [Limits that a session evades]
//
// The kernel's limits hold operators. Code of an attacker inside a session can evade some of them:
// memory that it has filled and made read-only leaves the count of RLIMIT_DATA, page tables are in
// no limit, and threads count for the user whom all sessions share, so that one session can use up
// everybody's. So the listener looks at what each process has, in files of the kernel's that the
// process cannot change, and kills one that has more. What it can take between two looks is limited
// by its speed.

constexpr std::chrono::seconds kExcessInterval{1};

// What the process has more of than a session may have, for the log and for its client. Empty:
// nothing, or the process has ended.
std::string excess_of(pid_t process);

// The most threads of a session: libraries have pools by the number of cores, and CUDA, NCCL and
// Gloo threads of their own.
unsigned most_threads_of_session();

}  // namespace torch_remote::server
