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
#include <features.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

Fd owned(int descriptor, std::string_view what) {
  if (descriptor < 0)
    throw_system_errno(what, errno);
  return Fd(descriptor);
}

// posix_spawn's functions return the error and do not set errno.
void check_spawn(int error, std::string_view what) {
  if (error != 0)
    throw_system_errno(what, error);
}

class SpawnActions {
 public:
  SpawnActions() {
    check_spawn(posix_spawn_file_actions_init(&actions_), "posix_spawn_file_actions_init");
  }

  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }

  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;

  void read_nothing() {
    check_spawn(posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0),
                "posix_spawn_file_actions_addopen");
  }

  void put(const Fd& descriptor, int target) {
    check_spawn(posix_spawn_file_actions_adddup2(&actions_, descriptor.get(), target),
                "posix_spawn_file_actions_adddup2");
  }

  // Also closes what other libraries opened without close-on-exec.
  void close_from([[maybe_unused]] int first) {
#if __GLIBC_PREREQ(2, 34)
    check_spawn(posix_spawn_file_actions_addclosefrom_np(&actions_, first),
                "posix_spawn_file_actions_addclosefrom_np");
#endif
  }

  void put_output_to_error() {
    check_spawn(posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO),
                "posix_spawn_file_actions_adddup2");
  }

  const posix_spawn_file_actions_t* get() const {
    return &actions_;
  }

 private:
  posix_spawn_file_actions_t actions_;
};

// Default signals for the child: Python ignores SIGPIPE, and our threads block signals.
class SpawnAttributes {
 public:
  explicit SpawnAttributes(bool is_new_session) {
    check_spawn(posix_spawnattr_init(&attributes_), "posix_spawnattr_init");
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    check_spawn(posix_spawnattr_setsigmask(&attributes_, &none), "posix_spawnattr_setsigmask");
    check_spawn(posix_spawnattr_setsigdefault(&attributes_, &all), "posix_spawnattr_setsigdefault");
    const int session = is_new_session ? POSIX_SPAWN_SETSID : 0;
    const auto flags = static_cast<short>(session | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    check_spawn(posix_spawnattr_setflags(&attributes_, flags), "posix_spawnattr_setflags");
  }

  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }

  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& additions) {
  std::vector<std::string> merged;
  for (const auto& [name, value] : additions)
    merged.push_back(name + "=" + value);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    bool replaced = false;
    for (const auto& [name, value] : additions)
      replaced = replaced || (text.starts_with(name) && text.substr(name.size()).starts_with('='));
    if (!replaced)
      merged.emplace_back(text);
  }
  return merged;
}

// The null-terminated array for exec, which points into `strings`.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Moves descriptors off the target numbers: dup2() would close another one there, or in older glibc
// leave close-on-exec set on itself.
std::vector<Fd> away_from_targets(std::vector<Fd> inherited) {
  const int end = kInheritedDescriptor + static_cast<int>(inherited.size());
  for (Fd& descriptor : inherited)
    if (descriptor.get() >= kInheritedDescriptor && descriptor.get() < end)
      descriptor = owned(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, end), "fcntl");
  return inherited;
}

// posix_spawn, not fork: it copies no page tables and does not run the atfork handlers of libtorch,
// OpenMP and CUDA.
Child spawn(const std::string& program, std::vector<std::string> arguments,
            std::vector<std::string> environment, const SpawnActions& actions,
            bool is_new_session = true) {
  const SpawnAttributes attributes(is_new_session);
  Child child;
  const int error = posix_spawnp(&child.pid, program.c_str(), actions.get(), attributes.get(),
                                 pointers_to(arguments).data(), pointers_to(environment).data());
  check_spawn(error, "starting " + program);
  // Nobody has waited for the child yet, so the pid is still the child's.
  child.pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0U)));
  return child;
}

// Standard input is /dev/null; `sources` become descriptors kInheritedDescriptor and up.
void pass_on(const std::vector<Fd>& sources, SpawnActions& actions) {
  actions.read_nothing();
  int target = kInheritedDescriptor;
  for (const Fd& descriptor : sources)
    actions.put(descriptor, target++);
  actions.close_from(target);
}

// Standard error, opened again where it is a file or a terminal: who gets this descriptor cannot
// read a terminal's keys, nor what is in the log, and writes at the end of a file. What else has
// standard error open writes at the end too from now on, or it would write over those lines. Empty
// for a pipe or a socket, and where it may not be opened.
Fd log_to_write_only() {
  struct stat facts {};

  if (::fstat(STDERR_FILENO, &facts) != 0 || !(S_ISREG(facts.st_mode) || S_ISCHR(facts.st_mode)))
    return {};
  if (S_ISREG(facts.st_mode))
    ::fcntl(STDERR_FILENO, F_SETFL, ::fcntl(STDERR_FILENO, F_GETFL) | O_APPEND);
  return Fd(::open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC));
}

bool is_passing_accept_error(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

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

Child spawn_server(const std::string& path, const std::vector<std::string>& arguments,
                   const std::vector<std::pair<std::string, std::string>>& environment,
                   std::vector<Fd> inherited) {
  const std::vector<Fd> sources = away_from_targets(std::move(inherited));
  SpawnActions actions;
  pass_on(sources, actions);
  return spawn(path, arguments, merged_environment(environment), actions);
}

Child spawn_session(const std::string& path, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment, std::vector<Fd> inherited) {
  const std::vector<Fd> sources = away_from_targets(std::move(inherited));
  const Fd log = log_to_write_only();
  SpawnActions actions;
  if (log)
    actions.put(log, STDERR_FILENO);
  actions.put_output_to_error();
  pass_on(sources, actions);
  return spawn(path, arguments, environment, actions, false);
}

void close_descriptors_in_programs() noexcept {
  constexpr long kCloseRange = 436;           // SYS_close_range, which older headers lack
  constexpr unsigned kCloseOnExec = 1U << 2;  // CLOSE_RANGE_CLOEXEC
  ::syscall(kCloseRange, 3U, ~0U, kCloseOnExec);
}

Child spawn_command(const std::vector<std::string>& command, Fd standard) {
  const Fd source = owned(::fcntl(standard.get(), F_DUPFD_CLOEXEC, 3), "fcntl");
  standard.reset();
  SpawnActions actions;
  actions.put(source, STDIN_FILENO);
  actions.put(source, STDOUT_FILENO);
  actions.close_from(3);
  return spawn(command.at(0), command, merged_environment({}), actions);
}

std::optional<int> wait_for_end(Child& child, std::chrono::milliseconds patience) {
  pollfd ended{child.pidfd.get(), POLLIN, 0};
  if (child.pid <= 0 || !child.pidfd || ::poll(&ended, 1, static_cast<int>(patience.count())) != 1)
    return std::nullopt;
  int status = 0;
  ::waitpid(std::exchange(child.pid, -1), &status, 0);
  child.pidfd.reset();
  return status;
}

void end_child(Child& child, std::chrono::milliseconds grace) {
  if (wait_for_end(child, grace) || child.pid <= 0)
    return;
  ::kill(child.pid, SIGKILL);
  ::waitpid(std::exchange(child.pid, -1), nullptr, 0);
  child.pidfd.reset();
}

Fd watch_parent(pid_t pid) {
  return owned(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)), "pidfd_open");
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

std::string hostname() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    return "unknown-host";
  return name.data();
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

void name_this_thread(const char* name) noexcept {
  std::array<char, 16> kept{};
  std::snprintf(kept.data(), kept.size(), "%s", name);
  pthread_setname_np(pthread_self(), kept.data());
}

void begin_worker_thread(const char* name) noexcept {
  name_this_thread(name);
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF})
    sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

void want_precise_waits() noexcept {
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

}  // namespace torch_remote
