#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include <sys/socket.h>

#include "base/sigpipe.h"

namespace torch_remote {
namespace {

std::atomic<bool> has_sendmsg = true;

}  // namespace

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

}  // namespace torch_remote
