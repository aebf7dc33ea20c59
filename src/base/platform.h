#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

// Who is at the other end of a connected socket, for logs: "pid 4711, uid 1000" or "127.0.0.1:40112". The kernel tells.
std::string describe_peer(const Fd& socket);

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

// The same for a command that is looked for in PATH, with `standard` as its standard input and output.
Child spawn_command(const std::vector<std::string>& command, Fd standard);

// Waits so long for a child's end. Its status as waitpid() has it, once; the child's pid is -1 from then on. Nothing:
// it runs on, or has been waited for before.
std::optional<int> wait_for_end(Child& child, std::chrono::milliseconds patience);
// Kills it, unless it ends by itself within so long.
void end_child(Child& child, std::chrono::milliseconds grace);

// A descriptor that becomes readable when that process ends. Throws std::system_error, with ESRCH
// when it has already ended (and has been waited for).
Fd watch_parent(pid_t pid);

// Makes the process end with status 1 where it would end with 0. All other exit handlers still run.
void fail_at_exit();

// Zeroed memory without a name in the file system, to be mapped by the processes that have the descriptor.
Fd shared_memory(const char* name, size_t bytes);

// Two connected Unix sockets that keep messages apart and can pass descriptors on.
std::pair<Fd, Fd> message_pair();
// A socket under a name of its own that takes messages from processes of this user; there is no file. An empty one
// when the name is taken. Others can connect too, and are turned away.
Fd named_socket(const std::string& name);
// A socket that sends one message to that name. Empty: there is none, or it is another user's.
Fd socket_to(const std::string& name);

constexpr size_t kMaxPassed = 3;
// Sends a message with one to kMaxPassed descriptors, without waiting. False: nobody takes it.
bool pass_descriptors(const Fd& over, std::span<const std::byte> message,
                      std::span<const int> passed) noexcept;
// Waits for the next; fills `message`. None when the other end is gone; messages of another length, from another user
// or without a descriptor are skipped.
std::vector<Fd> receive_descriptors(const Fd& over, std::span<std::byte> message) noexcept;

// Writes all of it to a pipe, a terminal or a file, and waits no longer than that for somebody to read. False: it
// could not be written, or not wholly.
bool write_patiently(int descriptor, std::string_view text,
                     std::chrono::milliseconds patience) noexcept;

// Changes with every start of the machine and differs between process namespaces: where it is
// equal, process ids name the same processes. Empty when it cannot be told.
std::string machine_identity();

// getpid() without a system call. Right in the child of a fork() too, once its pthread_atfork
// handlers have run; one of them cannot rely on it.
pid_t this_process() noexcept;

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
