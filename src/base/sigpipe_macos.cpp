#include <fcntl.h>
#include <sys/socket.h>

#include "base/sigpipe.h"

namespace torch_remote {

// A property of the open socket or pipe, so that nothing is left to do when it is written to.
// Blocking SIGPIPE on one thread does not help: macOS sends it to the process.
void prevent_sigpipe(const Fd& descriptor) noexcept {
  ::fcntl(descriptor.get(), F_SETNOSIGPIPE, 1);
}

ssize_t send_parts(const Fd& socket, std::span<iovec> parts) noexcept {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = static_cast<int>(parts.size());
  return ::sendmsg(socket.get(), &message, 0);
}

HeldSigpipe::HeldSigpipe() noexcept : sigpipe_{}, before_{}, was_pending_(false) {}

HeldSigpipe::~HeldSigpipe() = default;

}  // namespace torch_remote
