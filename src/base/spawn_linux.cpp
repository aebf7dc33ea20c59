// Starts programs and waits for them.
#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <features.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

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

}  // namespace

Child spawn_server(const std::string& path, const std::vector<std::string>& arguments,
                   const std::vector<std::pair<std::string, std::string>>& environment,
                   std::vector<Fd> inherited) {
  const std::vector<Fd> sources = away_from_targets(std::move(inherited));
  SpawnActions actions;
  pass_on(sources, actions);
  return spawn(path, arguments, merged_environment(environment), actions);
}

Child spawn_session(const std::string& path, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment, std::vector<Fd> inherited,
                    const Fd& output) {
  const std::vector<Fd> sources = away_from_targets(std::move(inherited));
  const Fd away = owned(::fcntl(output.get(), F_DUPFD_CLOEXEC,
                                kInheritedDescriptor + static_cast<int>(sources.size())),
                        "fcntl");
  SpawnActions actions;
  actions.put(away, STDOUT_FILENO);
  actions.put(away, STDERR_FILENO);
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

}  // namespace torch_remote
