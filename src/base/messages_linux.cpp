// Messages between processes of one machine that can carry file descriptors.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

// An address in Linux's abstract namespace: there is no file, and the name ends with the socket.
struct NamedAddress {
  explicit NamedAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size;
};

Fd message_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket)
    throw_system_errno("socket", errno);
  return socket;
}

// Whether the process that connected runs as this user, as the kernel reports it.
bool is_of_this_user(const Fd& socket) {
  const std::optional<PeerProcess> peer = peer_process(socket);
  return peer && peer->uid == ::geteuid();
}

bool is_listening(const Fd& socket) {
  int listens = 0;
  socklen_t size = sizeof listens;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
         listens != 0;
}

// A message in one part, with room for descriptors.
struct MessageWithDescriptors {
  explicit MessageWithDescriptors(std::span<std::byte> bytes) : part{bytes.data(), bytes.size()} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  iovec part;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxPassed * sizeof(int))> control{};
  msghdr header{};
};

std::vector<Fd> descriptors_of(MessageWithDescriptors& message) {
  std::vector<Fd> passed;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message.header); part != nullptr;
       part = CMSG_NXTHDR(&message.header, part)) {
    for (size_t at = 0;
         part->cmsg_type == SCM_RIGHTS && CMSG_LEN(at + sizeof(int)) <= part->cmsg_len;
         at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + at, sizeof descriptor);
      passed.emplace_back(descriptor);
    }
  }
  return passed;
}

// Receives the next message. Returns its length and fills `passed`; -1 with errno on failure; 0 and
// nothing passed when the peer has closed.
ssize_t receive(const Fd& over, std::span<std::byte> message, std::vector<Fd>& passed,
                int flags = 0) {
  MessageWithDescriptors taken(message);
  const ssize_t got = ::recvmsg(over.get(), &taken.header, MSG_CMSG_CLOEXEC | flags);
  passed = got < 0 ? std::vector<Fd>() : descriptors_of(taken);
  return got;
}

// Accepts senders on a named socket and reads one message from each. Empty: the socket is closed.
std::vector<Fd> receive_by_name(const Fd& listener, std::span<std::byte> message) {
  for (;;) {
    const Fd sender(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!sender && (errno == EBADF || errno == EINVAL))
      return {};
    if (!sender) {
      if (errno != EINTR && errno != ECONNABORTED)
        ::usleep(10000);  // out of memory or descriptors: try again
      continue;
    }
    const timeval patience{1, 0};  // a process of ours sends its message at once
    ::setsockopt(sender.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::vector<Fd> passed;
    if (is_of_this_user(sender) &&
        receive(sender, message, passed) == static_cast<ssize_t>(message.size()) && !passed.empty())
      return passed;
  }
}

}  // namespace

void take_no_descriptors(const Fd& listener) noexcept {
  constexpr int kTakesRights = 83;  // SO_PASSRIGHTS, which older headers lack
  const int no = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, kTakesRights, &no, sizeof no);
}

std::pair<Fd, Fd> message_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw_system_errno("socketpair", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd named_socket(const std::string& name) {
  constexpr int kWaiting = 16;
  Fd socket = message_socket();
  const NamedAddress address(name);
  if (::bind(socket.get(), address.get(), address.size) != 0) {
    if (errno != EADDRINUSE)
      throw_system_errno("bind", errno);
    return {};
  }
  if (::listen(socket.get(), kWaiting) != 0)
    throw_system_errno("listen", errno);
  return socket;
}

Fd socket_to(const std::string& name) {
  Fd socket = message_socket();
  const NamedAddress address(name);
  if (::connect(socket.get(), address.get(), address.size) == 0)
    return is_of_this_user(socket) ? std::move(socket) : Fd();
  if (errno != ECONNREFUSED)
    throw_system_errno("connect", errno);
  return {};
}

Passed pass_descriptors(const Fd& over, std::span<const std::byte> message,
                        std::span<const int> passed) noexcept {
  // sendmsg() only reads the bytes, but iovec has no const.
  MessageWithDescriptors sent({const_cast<std::byte*>(message.data()), message.size()});  // NOLINT
  cmsghdr* const rights = CMSG_FIRSTHDR(&sent.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(passed.size_bytes());
  std::memcpy(CMSG_DATA(rights), passed.data(), passed.size_bytes());
  sent.header.msg_controllen = CMSG_SPACE(passed.size_bytes());
  ssize_t bytes = -1;
  do {
    bytes = ::sendmsg(over.get(), &sent.header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (bytes < 0 && errno == EINTR);
  if (bytes == static_cast<ssize_t>(message.size()))
    return Passed::kSent;
  const bool may_go_later = bytes < 0 && (errno == EAGAIN || errno == ETOOMANYREFS ||
                                          errno == ENOBUFS || errno == ENOMEM);
  return may_go_later ? Passed::kFull : Passed::kGone;
}

std::vector<Fd> receive_descriptors(const Fd& over, std::span<std::byte> message) noexcept {
  if (is_listening(over))
    return receive_by_name(over, message);
  for (;;) {
    std::vector<Fd> passed;
    const ssize_t got = receive(over, message, passed);
    if (got < 0 ? errno == EBADF || errno == ENOTCONN || errno == ECONNRESET
                : got == 0 && passed.empty())
      return {};
    if (got < 0 && errno != EINTR)
      ::usleep(10000);  // out of memory or descriptors: try again
    if (!passed.empty() && got == static_cast<ssize_t>(message.size()))
      return passed;
  }
}

std::vector<Fd> take_descriptors(const Fd& over, std::span<std::byte> message) noexcept {
  std::vector<Fd> passed;
  if (receive(over, message, passed, MSG_DONTWAIT) != static_cast<ssize_t>(message.size()))
    passed.clear();
  return passed;
}

}  // namespace torch_remote
