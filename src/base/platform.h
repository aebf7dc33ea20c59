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

#include <signal.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/fd.h"

// Everything that differs between operating systems. A file x_linux.cpp or x_macos.cpp is compiled
// on one of them; macOS has no server, and lacks what only the server needs.
// Descriptors made here are close-on-exec. Thread-safe. Throws std::system_error where nothing else
// is said.
namespace torch_remote {

std::pair<Fd, Fd> socket_pair();
// The read end, the write end.
std::pair<Fd, Fd> pipe_pair();
// `family` is AF_UNIX, AF_INET or AF_INET6.
Fd stream_socket(int family);
// Waits for the next connection. Connections that fail before they are accepted are skipped. Throws
// ConnectionError when the listener is shut down or accept() fails for good.
Fd accept_connection(const Fd& listener);

// The process at the other end of a connected Unix socket, as the kernel reports it.
struct PeerProcess {
  pid_t pid = -1;
  uid_t uid = 0;
};

// Nothing: the kernel does not say.
std::optional<PeerProcess> peer_process(const Fd& socket);
// The peer of a connected socket, for logs: "pid 4711, uid 1000" or "127.0.0.1:40112".
std::string describe_peer(const Fd& socket);
// The address of this machine that a TCP connection has, in digits; empty for other sockets.
std::string own_host(const Fd& socket);
// Who is at the other end, as far as limits for each peer go: "uid 1000", the IPv4 address, or the
// first 64 bits of an IPv6 address, of which one machine may have all the rest.
std::string identify_peer(const Fd& socket);

// Who writes to a connection that the peer has closed gets SIGPIPE, which ends a program that did
// not ask to ignore it. What follows writes without it, and then fails with EPIPE only; Linux and
// macOS have different ways to that.

// To be called for a socket or a pipe before it is written to as below.
void prevent_sigpipe(const Fd& descriptor) noexcept;

// sendmsg() of these parts.
ssize_t send_parts(const Fd& socket, std::span<iovec> parts) noexcept;
// For a process of ours that may not call sendmsg(), which can give descriptors away. From now on
// send_parts() calls writev(), and this process ignores SIGPIPE. Linux only.
void send_without_sendmsg() noexcept;

// While it lives, this thread can write to a pipe. Where the system has no other way, it blocks
// SIGPIPE on this thread, and at the end discards one that this thread has caused. One that was
// pending before stays pending. Confined to one thread.
class HeldSigpipe {
 public:
  HeldSigpipe() noexcept;
  ~HeldSigpipe();

  HeldSigpipe(const HeldSigpipe&) = delete;
  HeldSigpipe& operator=(const HeldSigpipe&) = delete;

 private:
  [[maybe_unused]] sigset_t sigpipe_;
  [[maybe_unused]] sigset_t before_;
  [[maybe_unused]] bool was_pending_;
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable once the process has ended; empty where the kernel has none
};

// Starts a command found in PATH in a new session (setsid), so that signals from our terminal do
// not reach it. `standard` becomes its standard input and output, standard error is ours; no other
// descriptors are passed on. Signal dispositions are the defaults. The caller waits for the pid.
// May be called while other threads run.
Child spawn_command(const std::vector<std::string>& command, Fd standard);

// Waits up to `patience` for the child to end and returns its waitpid() status, once: then the
// child's pid is -1. Nothing: the child still runs, or its status was returned before.
std::optional<int> wait_for_end(Child& child, std::chrono::milliseconds patience);
// Waits up to `grace` for the child to end by itself, then kills it.
void end_child(Child& child, std::chrono::milliseconds grace);

// Changes exit status 0 of this process to 1. All other exit handlers still run. On macOS, where an
// exit handler does not get the status, every status becomes 1.
void fail_at_exit();

// Zeroed memory without a file; processes that have the descriptor can map it. Nobody can change
// its size: reading beyond the end of a mapped file would kill the reader.
Fd shared_memory(const char* name, size_t bytes);

// Writes text to a pipe, terminal or file, and waits up to `patience` for room. False: not all of
// it was written.
bool write_patiently(int descriptor, std::string_view text,
                     std::chrono::milliseconds patience) noexcept;

// Differs between machines, boots and process namespaces: where it is equal, a process id means the
// same process. Empty when unknown.
std::string machine_identity();

// getpid() without a system call. In the child of a fork() it is right only once the pthread_atfork
// handlers have run.
pid_t this_process() noexcept;

// Large blocks of memory that nothing has used yet get huge pages where the kernel gives them: one
// page fault for 2 MiB instead of 512. Does nothing for small or used memory.
void want_huge_pages(std::span<std::byte> memory) noexcept;

uint64_t current_rss_bytes();  // resident memory of this process; 0 when unknown
std::string hostname();
void random_bytes(std::span<std::byte> into);  // for nonces and tokens

// Whether another thread of this process is running or could run; false where that is unknown.
bool other_threads_run();

bool is_main_thread() noexcept;
// Shown by `ps -L` and debuggers, cut after 15 characters (on macOS 63).
void name_this_thread(const char* name) noexcept;
// To be called first in each thread that we start. Blocks the signals meant for the process, so
// that Python's main thread gets them and our system calls are not interrupted.
void begin_worker_thread(const char* name) noexcept;
// Lets timed waits of this thread end within microseconds of the deadline; the kernel otherwise
// adds about 50.
void want_precise_waits() noexcept;

// The rest is for starting a server and for the server itself: Linux only.

// Gives up every capability of this thread, and of those that it starts from now on; what the
// kernel does not let go stays.
void give_up_capabilities() noexcept;
// Lets this process have as many descriptors as it may ask for.
void raise_descriptor_limit() noexcept;
// Lets this process have few descriptors for ever: at most 1024, and a quarter of what it could ask
// for. The kernel counts descriptors that are on their way in sockets for each user, and compares
// them with the limit of who sends one: so this process cannot keep others of its user, whose limit
// is higher, from sending them.
void lower_descriptor_limit() noexcept;

// A spawned server finds the first inherited descriptor under this number.
inline constexpr int kInheritedDescriptor = 3;

// The same as spawn_command() for a program with a path, with these differences: standard input is
// /dev/null, standard output is ours. `inherited` become descriptors kInheritedDescriptor and up.
// The variables in `environment` are added to ours. `arguments` begins with the program's name.
Child spawn_server(const std::string& path, const std::vector<std::string>& arguments,
                   const std::vector<std::pair<std::string, std::string>>& environment,
                   std::vector<Fd> inherited);

// The same for the process of a session, with these differences: `environment` ("NAME=value") is
// all that it has, standard output and error are `output`, and it stays in our session, so that
// what ends a terminal's programs ends it too.
Child spawn_session(const std::string& path, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment, std::vector<Fd> inherited,
                    const Fd& output);
// Sets close-on-exec on all descriptors but the standard ones: also on those that we inherited. For
// C libraries with which spawn_session() cannot close them. Does nothing before Linux 5.11.
void close_descriptors_in_programs() noexcept;

// A descriptor that becomes readable when process `pid` ends. Throws std::system_error with ESRCH
// when the process has ended and has been waited for.
Fd watch_parent(pid_t pid);

// Who connects to this listening Unix socket from now on cannot send descriptors to who accepts.
// Linux before 6.16 cannot refuse them; other sockets have none.
void take_no_descriptors(const Fd& listener) noexcept;

// Two connected Unix sockets that keep message boundaries and can pass descriptors.
std::pair<Fd, Fd> message_pair();
// A socket with a name but no file that takes messages from processes of this user. Connections of
// other users are closed. Empty when the name is taken.
Fd named_socket(const std::string& name);
// A socket to send one message to that name. Empty: no such socket, or another user's.
Fd socket_to(const std::string& name);

constexpr size_t kMaxPassed = 3;
enum class Passed {
  kSent,
  kFull,  // the socket is full, or this user has too many descriptors on their way: later perhaps
  kGone,  // nobody will receive it
};
// Sends a message with 1 to kMaxPassed descriptors, without waiting.
Passed pass_descriptors(const Fd& over, std::span<const std::byte> message,
                        std::span<const int> passed) noexcept;
// Waits for the next message and fills `message`. Messages of another length, from another user or
// without a descriptor are skipped. Empty when the socket is closed.
std::vector<Fd> receive_descriptors(const Fd& over, std::span<std::byte> message) noexcept;
// Takes the next message from a socket of message_pair(), without waiting. Empty: there is none, it
// has another length, or it has no descriptor, as when this process can have no more of them.
std::vector<Fd> take_descriptors(const Fd& over, std::span<std::byte> message) noexcept;

}  // namespace torch_remote
