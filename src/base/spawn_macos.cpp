// Starts programs and waits for them.
#include <algorithm>
#include <cerrno>
#include <string_view>

#include <crt_externs.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/event.h>
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

  void put(const Fd& descriptor, int target) {
    check_spawn(posix_spawn_file_actions_adddup2(&actions_, descriptor.get(), target),
                "posix_spawn_file_actions_adddup2");
  }

  // A descriptor that is not open would fail the start.
  void keep_if_open(int descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) {
      check_spawn(posix_spawn_file_actions_addinherit_np(&actions_, descriptor),
                  "posix_spawn_file_actions_addinherit_np");
    }
  }

  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// Default signals for the child: Python ignores SIGPIPE, and our threads block signals. The child
// gets only the descriptors that the actions name, also of those without close-on-exec.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    check_spawn(posix_spawnattr_init(&attributes_), "posix_spawnattr_init");
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    check_spawn(posix_spawnattr_setsigmask(&attributes_, &none), "posix_spawnattr_setsigmask");
    check_spawn(posix_spawnattr_setsigdefault(&attributes_, &all), "posix_spawnattr_setsigdefault");
    constexpr short kFlags = POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                             POSIX_SPAWN_CLOEXEC_DEFAULT;
    check_spawn(posix_spawnattr_setflags(&attributes_, kFlags), "posix_spawnattr_setflags");
  }

  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }

  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// A kqueue that becomes readable when the process ends. Empty: the process has ended already.
Fd watch_process(pid_t pid) {
  Fd queue(::kqueue());
  if (!queue)
    throw_system_errno("kqueue", errno);
  ::fcntl(queue.get(), F_SETFD, FD_CLOEXEC);

  struct kevent change {};

  EV_SET(&change, pid, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, nullptr);
  if (::kevent(queue.get(), &change, 1, nullptr, 0, nullptr) != 0)
    return {};
  return queue;
}

// The null-terminated array for exec, which points into `strings`.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Its status if it has ended.
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

Child spawn_command(const std::vector<std::string>& command, Fd standard) {
  const Fd source(::fcntl(standard.get(), F_DUPFD_CLOEXEC, 3));
  if (!source)
    throw_system_errno("fcntl", errno);
  standard.reset();
  SpawnActions actions;
  actions.put(source, STDIN_FILENO);
  actions.put(source, STDOUT_FILENO);
  actions.keep_if_open(STDERR_FILENO);
  const SpawnAttributes attributes;
  std::vector<std::string> arguments = command;
  Child child;
  // A library has no `environ` of its own on macOS.
  const int error = posix_spawnp(&child.pid, command.at(0).c_str(), actions.get(), attributes.get(),
                                 pointers_to(arguments).data(), *_NSGetEnviron());
  check_spawn(error, "starting " + command.at(0));
  child.pidfd = watch_process(child.pid);
  return child;
}

std::optional<int> wait_for_end(Child& child, std::chrono::milliseconds patience) {
  if (child.pid <= 0)
    return std::nullopt;
  if (!child.pidfd)  // it ended before it could be watched
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
