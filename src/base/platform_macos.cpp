#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fcntl.h>
#include <mach/mach.h>
#include <mach/thread_policy.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

// The kernel makes no descriptor with close-on-exec set, so a program that another thread starts at
// this moment may inherit it. Those that we start do not: spawn_macos.cpp.
Fd closed_on_exec(int descriptor, std::string_view what) {
  if (descriptor < 0)
    throw_system_errno(what, errno);
  Fd owner(descriptor);
  if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
    throw_system_errno("fcntl", errno);
  return owner;
}

std::pair<Fd, Fd> closed_on_exec(const std::array<int, 2>& ends, std::string_view what) {
  Fd other(ends[1]);
  Fd first = closed_on_exec(ends[0], what);
  return {std::move(first), closed_on_exec(other.release(), what)};
}

bool is_passing_accept_error(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO;
}

// The threads of this process. Gives them back to the kernel at the end.
class Threads {
 public:
  Threads() {
    if (::task_threads(mach_task_self(), &threads_, &count_) != KERN_SUCCESS)
      count_ = 0;
  }

  ~Threads() {
    for (mach_msg_type_number_t i = 0; i < count_; ++i)
      ::mach_port_deallocate(mach_task_self(), threads_[i]);
    if (count_ > 0) {
      ::vm_deallocate(mach_task_self(), reinterpret_cast<vm_address_t>(threads_),
                      count_ * sizeof(thread_act_t));
    }
  }

  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  const thread_act_t* begin() const { return threads_; }

  const thread_act_t* end() const { return threads_ + count_; }

 private:
  thread_act_array_t threads_ = nullptr;
  mach_msg_type_number_t count_ = 0;
};

}  // namespace

std::pair<Fd, Fd> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0)
    throw_system_errno("socketpair", errno);
  return closed_on_exec(ends, "socketpair");
}

std::pair<Fd, Fd> pipe_pair() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0)
    throw_system_errno("pipe", errno);
  return closed_on_exec(ends, "pipe");
}

Fd stream_socket(int family) {
  return closed_on_exec(::socket(family, SOCK_STREAM, 0), "socket");
}

Fd accept_connection(const Fd& listener) {
  for (;;) {
    const int descriptor = ::accept(listener.get(), nullptr, nullptr);
    if (descriptor >= 0)
      return closed_on_exec(descriptor, "accept");
    if (!is_passing_accept_error(errno))
      throw_connection_errno("accepting a connection", errno);
  }
}

std::optional<PeerProcess> peer_process(const Fd& socket) {
  PeerProcess peer;
  gid_t group = 0;
  socklen_t size = sizeof peer.pid;
  if (::getpeereid(socket.get(), &peer.uid, &group) != 0 ||
      ::getsockopt(socket.get(), SOL_LOCAL, LOCAL_PEERPID, &peer.pid, &size) != 0)
    return std::nullopt;
  return peer;
}

// A property of the open socket or pipe, so that nothing is left to do when it is written to.
// Blocking SIGPIPE on one thread does not help: macOS sends it to the process.
void prevent_sigpipe(const Fd& descriptor) noexcept {
  ::fcntl(descriptor.get(), F_SETNOSIGPIPE, 1);
}

ssize_t send_parts(const Fd& socket, std::span<iovec> parts) noexcept {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = static_cast<int>(parts.size());
  return ::sendmsg(socket.get(), &message, 0);
}

HeldSigpipe::HeldSigpipe() noexcept : sigpipe_{}, before_{}, was_pending_(false) {}

HeldSigpipe::~HeldSigpipe() = default;

// The name is removed at once. The kernel sets the size of such memory once and never changes it.
Fd shared_memory(const char* /*name*/, size_t bytes) {
  std::array<char, 32> name{};  // macOS takes at most 31 characters
  std::snprintf(name.data(), name.size(), "/torch-remote-%08x", ::arc4random());
  Fd memory = closed_on_exec(::shm_open(name.data(), O_CREAT | O_EXCL | O_RDWR, 0600), "shm_open");
  ::shm_unlink(name.data());
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    throw_system_errno("ftruncate", errno);
  return memory;
}

// An identifier that the kernel makes when it boots. There are no process namespaces.
std::string machine_identity() {
  std::array<char, 64> boot{};
  size_t size = boot.size() - 1;
  if (::sysctlbyname("kern.bootsessionuuid", boot.data(), &size, nullptr, 0) != 0)
    return {};
  return boot.data();
}

// Programs cannot have huge pages on arm64, whose ordinary ones are of 16 KiB.
void want_huge_pages(std::span<std::byte> /*memory*/) noexcept {}

uint64_t current_rss_bytes() {
  mach_task_basic_info facts{};
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  if (::task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&facts),
                  &count) != KERN_SUCCESS)
    return 0;
  return facts.resident_size;
}

// The C library keeps it, and forgets it in the child of a fork.
pid_t this_process() noexcept {
  return ::getpid();
}

void random_bytes(std::span<std::byte> into) {
  ::arc4random_buf(into.data(), into.size());
}

// The kernel can write to a pipe without waiting only if the pipe is set so for everybody who has
// it. After poll() there is room for PIPE_BUF bytes, unless another process fills the pipe at that
// moment: then the write waits longer.
bool write_patiently(int descriptor, std::string_view text,
                     std::chrono::milliseconds patience) noexcept {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  while (!text.empty()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd polled{descriptor, POLLOUT, 0};
    // For some devices poll() answers POLLNVAL at once: then the write is tried.
    if (::poll(&polled, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) <= 0)
      return false;
    const ssize_t written =
        ::write(descriptor, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    const bool may_try_again = errno == EINTR || (errno == EAGAIN && Clock::now() < deadline);
    if (written < 0 && !may_try_again)
      return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

// The handler may call exit(): the C library runs the remaining handlers, each once.
void fail_at_exit() {
  std::atexit([] { std::exit(1); });  // NOLINT
}

bool other_threads_run() {
  const mach_port_t own = ::pthread_mach_thread_np(::pthread_self());
  for (const thread_act_t thread : Threads()) {
    thread_basic_info facts{};
    mach_msg_type_number_t count = THREAD_BASIC_INFO_COUNT;
    if (thread != own &&
        ::thread_info(thread, THREAD_BASIC_INFO, reinterpret_cast<thread_info_t>(&facts), &count) ==
            KERN_SUCCESS &&
        facts.run_state == TH_STATE_RUNNING)
      return true;
  }
  return false;
}

bool is_main_thread() noexcept {
  return ::pthread_main_np() != 0;
}

void name_this_thread(const char* name) noexcept {
  ::pthread_setname_np(name);  // names this thread, and no other
}

// The kernel joins timers that are close together; it does so least for tier 0.
void want_precise_waits() noexcept {
  thread_latency_qos_policy policy{LATENCY_QOS_TIER_0};
  ::thread_policy_set(::pthread_mach_thread_np(::pthread_self()), THREAD_LATENCY_QOS_POLICY,
                      reinterpret_cast<thread_policy_t>(&policy), THREAD_LATENCY_QOS_POLICY_COUNT);
}

}  // namespace torch_remote
