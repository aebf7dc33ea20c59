#include <cerrno>

#include <crt_externs.h>
#include <fcntl.h>
#include <sys/event.h>
#include <unistd.h>

#include "base/error.h"
#include "base/spawn.h"

namespace torch_remote {

// The child gets only the descriptors that the actions name, also of those without close-on-exec.
const short kSpawnFlags = POSIX_SPAWN_CLOEXEC_DEFAULT;

// The flag closes all others but standard error, which the child shares with us. A descriptor that
// is not open would fail the start.
void SpawnActions::close_from(int /*first*/) {
  if (::fcntl(STDERR_FILENO, F_GETFD) < 0)
    return;
  check_spawn(posix_spawn_file_actions_addinherit_np(&actions_, STDERR_FILENO),
              "posix_spawn_file_actions_addinherit_np");
}

// A kqueue.
Fd watch_child(pid_t pid) {
  Fd queue = owned(::kqueue(), "kqueue");
  ::fcntl(queue.get(), F_SETFD, FD_CLOEXEC);

  struct kevent change {};

  EV_SET(&change, pid, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, nullptr);
  if (::kevent(queue.get(), &change, 1, nullptr, 0, nullptr) != 0)
    return {};
  return queue;
}

// A library has no `environ` of its own on macOS.
char** own_environment() {
  return *_NSGetEnviron();
}

}  // namespace torch_remote
