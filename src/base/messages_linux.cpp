// Messages between processes of one machine, and the descriptors that they carry.
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

// In the abstract namespace: a name that goes with its socket.
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
  Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) {
    throw_system_errno("socket", errno);
  }
  return socket;
}

// A message of one part, with room for descriptors and for who sent it.
struct MessageWithDescriptors {
  explicit MessageWithDescriptors(std::span<std::byte> bytes) : part{bytes.data(), bytes.size()} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  iovec part;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxPassed * sizeof(int)) +
                                             CMSG_SPACE(sizeof(ucred))> control{};
  msghdr header{};
};

// What the message carries. None if it came from another user: a named socket is told who sent each.
std::vector<Fd> descriptors_of(MessageWithDescriptors& message) {
  std::vector<Fd> passed;
  bool is_ours = true;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message.header); part != nullptr;
       part = CMSG_NXTHDR(&message.header, part)) {
    if (part->cmsg_type == SCM_CREDENTIALS) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
      is_ours = sender.uid == ::geteuid();
    }
    for (size_t at = 0;
         part->cmsg_type == SCM_RIGHTS && CMSG_LEN(at + sizeof(int)) <= part->cmsg_len;
         at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + at, sizeof descriptor);
      passed.emplace_back(descriptor);
    }
  }
  if (!is_ours) {
    passed.clear();
  }
  return passed;
}

}  // namespace

std::pair<Fd, Fd> message_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_system_errno("socketpair", errno);
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd named_socket(const std::string& name) {
  Fd socket = message_socket();
  const int yes = 1;
  const NamedAddress address(name);
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
    throw_system_errno("setsockopt", errno);
  }
  if (::bind(socket.get(), address.get(), address.size) == 0) {
    return socket;
  }
  if (errno != EADDRINUSE) {
    throw_system_errno("bind", errno);
  }
  return {};
}

Fd socket_to(const std::string& name) {
  Fd socket = message_socket();
  const NamedAddress address(name);
  if (::connect(socket.get(), address.get(), address.size) == 0) {
    return socket;
  }
  if (errno != ECONNREFUSED) {
    throw_system_errno("connect", errno);
  }
  return {};
}

bool pass_descriptors(const Fd& over, std::span<const std::byte> message,
                      std::span<const int> passed) noexcept {
  // sendmsg only reads; iovec has no const.
  MessageWithDescriptors sent({const_cast<std::byte*>(message.data()), message.size()});  // NOLINT
  cmsghdr* const rights = CMSG_FIRSTHDR(&sent.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(passed.size_bytes());
  std::memcpy(CMSG_DATA(rights), passed.data(), passed.size_bytes());
  sent.header.msg_controllen = CMSG_SPACE(passed.size_bytes());
  return ::sendmsg(over.get(), &sent.header, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(message.size());
}

std::vector<Fd> receive_descriptors(const Fd& over, std::span<std::byte> message) noexcept {
  for (;;) {
    MessageWithDescriptors taken(message);
    const ssize_t got = ::recvmsg(over.get(), &taken.header, MSG_CMSG_CLOEXEC);
    const bool is_message = got > 0 || taken.header.msg_controllen > 0;
    if (got < 0 ? errno == EBADF || errno == ENOTCONN || errno == ECONNRESET : !is_message) {
      return {};
    }
    if (got < 0 && errno != EINTR) {
      ::usleep(10000);  // no memory for it just now
    }
    if (got < 0) {
      continue;
    }
    std::vector<Fd> passed = descriptors_of(taken);
    if (!passed.empty() && got == static_cast<ssize_t>(message.size())) {
      return passed;
    }
  }
}

}  // namespace torch_remote
