#include "server/listener/end_signals.h"

#include <initializer_list>

namespace torch_remote::server {
namespace {

volatile std::sig_atomic_t is_asked_to_end = 0;

}  // namespace

EndSignals::EndSignals() {
  struct sigaction action {};

  action.sa_handler = [](int signal) {
    if (signal != SIGCHLD)
      is_asked_to_end = 1;
  };
  sigset_t held;
  sigemptyset(&held);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) {
    ::sigaction(signal, &action, nullptr);
    sigaddset(&held, signal);
  }
  ::sigprocmask(SIG_BLOCK, &held, &before_);
}

bool EndSignals::asked_to_end() {
  return is_asked_to_end != 0;
}

void EndSignals::restore_in_child() const {
  for (const int signal : {SIGCHLD, SIGTERM})
    ::signal(signal, SIG_DFL);
  ::signal(SIGINT, SIG_IGN);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace torch_remote::server
