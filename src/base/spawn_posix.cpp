// Starts programs and waits for them.
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/spawn.h"

namespace torch_remote {
namespace {

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
    const auto flags =
        static_cast<short>(session | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | kSpawnFlags);
    check_spawn(posix_spawnattr_setflags(&attributes_, flags), "posix_spawnattr_setflags");
  }

  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }

  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// The child's status if it has ended.
std::optional<int> take_status(Child& child, int flags) {
  int status = 0;
  pid_t ended = -1;
  do {
    ended = ::waitpid(child.pid, &status, flags);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0)
    return std::nullopt;
  child.pid = -1;
  child.pidfd.reset();
  return status;
}

}  // namespace

void check_spawn(int error, std::string_view what) {
  if (error != 0)
    throw_system_errno(what, error);
}

SpawnActions::SpawnActions() {
  check_spawn(posix_spawn_file_actions_init(&actions_), "posix_spawn_file_actions_init");
}

SpawnActions::~SpawnActions() {
  posix_spawn_file_actions_destroy(&actions_);
}

void SpawnActions::put(const Fd& descriptor, int target) {
  check_spawn(posix_spawn_file_actions_adddup2(&actions_, descriptor.get(), target),
              "posix_spawn_file_actions_adddup2");
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

Child spawn(const std::string& program, std::vector<std::string> arguments, char** environment,
            SpawnActions& actions, bool is_new_session) {
  const SpawnAttributes attributes(is_new_session);
  Child child;
  const int error = posix_spawnp(&child.pid, program.c_str(), actions.get(), attributes.get(),
                                 pointers_to(arguments).data(), environment);
  check_spawn(error, "starting " + program);
  // Nobody has waited for the child yet, so the pid is still the child's.
  child.pidfd = watch_child(child.pid);
  return child;
}

Child spawn_command(const std::vector<std::string>& command, Fd standard) {
  const Fd source = owned(::fcntl(standard.get(), F_DUPFD_CLOEXEC, 3), "fcntl");
  standard.reset();
  SpawnActions actions;
  actions.put(source, STDIN_FILENO);
  actions.put(source, STDOUT_FILENO);
  actions.close_from(3);
  return spawn(command.at(0), command, own_environment(), actions);
}

std::optional<int> wait_for_end(Child& child, std::chrono::milliseconds patience) {
  if (child.pid <= 0)
    return std::nullopt;
  if (!child.pidfd)
    return take_status(child, WNOHANG);
  pollfd ended{child.pidfd.get(), POLLIN, 0};
  if (::poll(&ended, 1, static_cast<int>(patience.count())) != 1)
    return std::nullopt;
  return take_status(child, 0);
}

void end_child(Child& child, std::chrono::milliseconds grace) {
  if (wait_for_end(child, grace) || child.pid <= 0)
    return;
  ::kill(child.pid, SIGKILL);
  take_status(child, 0);
}

}  // namespace torch_remote
