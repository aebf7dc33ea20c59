#pragma once

#include <csignal>

namespace torch_remote::server {

// SIGTERM and SIGINT, which end a listener, and SIGCHLD, which wakes it. They are delivered only
// inside ppoll() with during_wait(), so that none is missed between a check and a wait. One object
// for the process.
class EndSignals {
 public:
  EndSignals();

  static bool asked_to_end();

  const sigset_t& during_wait() const { return before_; }

  // For a child of fork().
  void restore_in_child() const;

 private:
  sigset_t before_{};
};

}  // namespace torch_remote::server
