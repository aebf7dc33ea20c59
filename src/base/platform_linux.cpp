#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

bool is_passing_accept_error(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

std::atomic<bool> has_sendmsg = true;

}  // namespace

std::pair<Fd, Fd> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw_system_errno("socketpair", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::pair<Fd, Fd> pipe_pair() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw_system_errno("pipe2", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd stream_socket(int family) {
  return owned(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
}

Fd accept_connection(const Fd& listener) {
  for (;;) {
    const int descriptor = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor >= 0)
      return Fd(descriptor);
    if (!is_passing_accept_error(errno))
      throw_connection_errno("accepting a connection", errno);
  }
}

std::optional<PeerProcess> peer_process(const Fd& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return std::nullopt;
  return PeerProcess{peer.pid, peer.uid};
}

// Linux has a flag for each call that sends, and nothing for a pipe.
void prevent_sigpipe(const Fd& /*descriptor*/) noexcept {}

ssize_t send_parts(const Fd& socket, std::span<iovec> parts) noexcept {
  if (!has_sendmsg.load(std::memory_order_relaxed))
    return ::writev(socket.get(), parts.data(), static_cast<int>(parts.size()));
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL);
}

void send_without_sendmsg() noexcept {
  ::signal(SIGPIPE, SIG_IGN);
  has_sendmsg = false;
}

HeldSigpipe::HeldSigpipe() noexcept {
  sigemptyset(&sigpipe_);
  sigaddset(&sigpipe_, SIGPIPE);
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
}

HeldSigpipe::~HeldSigpipe() {
  const timespec now{};
  while (!was_pending_ && ::sigtimedwait(&sigpipe_, nullptr, &now) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Fd shared_memory(const char* name, size_t bytes) {
  Fd memory = owned(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    throw_system_errno("ftruncate", errno);
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw_system_errno("fcntl", errno);
  return memory;
}

std::string machine_identity() {
  std::array<char, 64> boot{};
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen("/proc/sys/kernel/random/boot_id", "re"),
      [](FILE* open) { return std::fclose(open); });
  std::array<char, 64> processes{};
  if (file == nullptr || std::fgets(boot.data(), boot.size(), file.get()) == nullptr ||
      ::readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1) <= 0)
    return {};
  return std::string(boot.data()) + processes.data();
}

void want_huge_pages(std::span<std::byte> memory) noexcept {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t first = (begin + kHuge - 1) & ~(kHuge - 1);
  const uintptr_t last = (begin + memory.size()) & ~(kHuge - 1);
  if (memory.size() < 2 * kHuge || last <= first)
    return;
  auto* const whole = reinterpret_cast<void*>(first);  // NOLINT: aligned addresses are numbers
  unsigned char is_used = 0;
  if (::mincore(whole, 1, &is_used) == 0 && (is_used & 1) == 0)
    ::madvise(whole, last - first, MADV_HUGEPAGE);
}

uint64_t current_rss_bytes() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "re"),
                                                   [](FILE* open) { return std::fclose(open); });
  unsigned long long total = 0;
  unsigned long long resident = 0;
  if (file == nullptr || std::fscanf(file.get(), "%llu %llu", &total, &resident) != 2)
    return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

pid_t this_process() noexcept {
  static std::atomic<pid_t> known = 0;
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { known.store(::getpid(), std::memory_order_relaxed); });
  pid_t pid = known.load(std::memory_order_relaxed);
  if (pid == 0) {
    pid = ::getpid();
    known.store(pid, std::memory_order_relaxed);
  }
  return pid;
}

void random_bytes(std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = ::getrandom(into.data(), into.size(), 0);
    if (got < 0 && errno != EINTR)
      throw_system_errno("getrandom", errno);
    if (got > 0)
      into = into.subspan(static_cast<size_t>(got));
  }
}

bool write_patiently(int descriptor, std::string_view text,
                     std::chrono::milliseconds patience) noexcept {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;

  struct stat about {};

  // Only pipes and sockets can be full; some file systems answer EAGAIN for ever to RWF_NOWAIT.
  const bool may_be_full =
      ::fstat(descriptor, &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode));
  while (!text.empty()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd polled{descriptor, POLLOUT, 0};
    if (::poll(&polled, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) <= 0)
      return false;
    // Another process may fill the pipe between poll() and the write.
    const iovec part{const_cast<char*>(text.data()), std::min<size_t>(text.size(), PIPE_BUF)};
    ssize_t written = may_be_full ? ::pwritev2(descriptor, &part, 1, -1, RWF_NOWAIT)
                                  : ::write(descriptor, part.iov_base, part.iov_len);
    if (written < 0 && may_be_full && (errno == EOPNOTSUPP || errno == ENOSYS))
      written = ::write(descriptor, part.iov_base, part.iov_len);
    const bool may_try_again = errno == EINTR || (errno == EAGAIN && Clock::now() < deadline);
    if (written < 0 && !may_try_again)
      return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

// In glibc an exit handler may call exit(): the remaining handlers run and the new status counts.
void fail_at_exit() {
  on_exit(
      [](int status, void* /*argument*/) {
        if (status == 0)
          std::exit(1);  // NOLINT
      },
      nullptr);
}

bool other_threads_run() {
  const std::string own = std::to_string(gettid());
  std::error_code unknown;
  for (std::filesystem::directory_iterator entry("/proc/self/task", unknown), end;
       !unknown && entry != end; entry.increment(unknown)) {
    if (entry->path().filename() == own)
      continue;
    std::ifstream file(entry->path() / "stat");  // empty where the thread has ended meanwhile
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] == 'R')
      return true;
  }
  return false;
}

bool is_main_thread() noexcept {
  return ::getpid() == ::gettid();
}

void name_this_thread(const char* name) noexcept {
  std::array<char, 16> kept{};
  std::snprintf(kept.data(), kept.size(), "%s", name);
  pthread_setname_np(pthread_self(), kept.data());
}

void want_precise_waits() noexcept {
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

// The bounding set first: what changes it is a capability too.
void give_up_capabilities() noexcept {
  constexpr unsigned long kMostCapabilities = 64;
  for (unsigned long one = 0; one < kMostCapabilities; ++one)
    if (::prctl(PR_CAPBSET_DROP, one, 0, 0, 0) != 0 && errno == EINVAL)
      break;  // the kernel knows no more of them
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const std::array<__user_cap_data_struct, 2> none{};
  ::syscall(SYS_capset, &header, none.data());
}

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void lower_descriptor_limit() noexcept {
  constexpr rlim_t kMost = 1024;
  constexpr rlim_t kLeast = 128;  // a session without CUDA has some 50
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return;
  const rlim_t few = std::clamp(limit.rlim_max / 4, kLeast, kMost);
  limit.rlim_max = std::min(limit.rlim_max, few);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace torch_remote
