#pragma once

#include <span>

#include <signal.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/fd.h"

// Who writes to a connection that the peer has closed gets SIGPIPE, which ends a program that did
// not ask to ignore it. These write without it: they fail with EPIPE only.
namespace torch_remote {

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

}  // namespace torch_remote
