#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "base/fd.h"

// Everything that differs between operating systems. Descriptors made here are close-on-exec.
// Thread-safe. Failures that the caller cannot act on are std::system_error.
namespace torch_remote {

// Two connected Unix stream sockets.
std::pair<Fd, Fd> socket_pair();
// A pipe: read end, write end.
std::pair<Fd, Fd> pipe_pair();
// A stream socket of an address family (AF_UNIX, AF_INET, AF_INET6).
Fd stream_socket(int family);
// The next connection of a listening socket; blocks. Throws ConnectionError when the listener was
// shut down or accept failed for good; connections that failed before they were accepted are
// skipped.
Fd accept_connection(const Fd& listener);

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable once the process has ended; empty where the kernel has no pidfd
};

// The number under which a spawned server finds the first descriptor that it inherits.
inline constexpr int kInheritedDescriptor = 3;

// Starts a program in a session (setsid) of its own: no signal from our terminal reaches it. It
// gets standard input from /dev/null, our standard output and error, `inherited` as descriptors
// kInheritedDescriptor and up and no other descriptor, default signal dispositions, and our environment
// with `environment` added or replaced. `arguments` begins with the program's name. Safe in a
// multi-threaded process. The caller waits for the pid.
Child spawn_server(const std::string& path, const std::vector<std::string>& arguments,
                   const std::vector<std::pair<std::string, std::string>>& environment,
                   std::vector<Fd> inherited);

// A descriptor that becomes readable when that process ends. Throws std::system_error, with ESRCH
// when it has already ended (and has been waited for).
Fd watch_parent(pid_t pid);

// Zeroed memory without a name in the file system, to be mapped by the processes that have the descriptor.
Fd shared_memory(const char* name, size_t bytes);

// Two connected Unix sockets that keep messages apart and can pass descriptors on.
std::pair<Fd, Fd> message_pair();
// Sends a message with a descriptor, without waiting. False: nobody takes it.
bool pass_descriptor(const Fd& over, std::span<const std::byte> message, const Fd& passed) noexcept;
// Waits for the next; fills `message`. An empty one when the other end is gone; messages of another
// length, or without a descriptor, are skipped.
Fd receive_descriptor(const Fd& over, std::span<std::byte> message) noexcept;

// Changes with every start of the machine and differs between process namespaces: where it is
// equal, process ids name the same processes. Empty when it cannot be told.
std::string machine_identity();

uint64_t current_rss_bytes();  // resident memory of this process; 0 when unknown
std::string hostname();
void random_bytes(std::span<std::byte> into);  // for nonces and tokens

// Shown by ps -L and debuggers; at most 15 characters are kept.
void name_this_thread(const char* name) noexcept;
// The first thing that a thread of ours does: names itself, and blocks the signals that are for the
// process, so that they go to a thread which expects them (Python's main thread) and interrupt none
// of our system calls.
void begin_worker_thread(const char* name) noexcept;
// Lets timed waits of this thread end within microseconds of their deadline, where the kernel would
// otherwise add about 50.
void want_precise_waits() noexcept;

}  // namespace torch_remote
