#include "server/listener/first_message.h"

#include <array>
#include <cerrno>
#include <span>

#include <poll.h>
#include <sys/socket.h>

#include "base/error.h"
#include "server/session/handshake.h"
#include "transport/client_hello.h"
#include "transport/tls_error.h"
#include "wire/handshake.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

bool is_whole(std::span<const std::byte> received, bool has_tls) {
  if (!has_tls)
    return wire::holds_hello(received);
  if (!transport::looks_like_tls(received))
    throw ProtocolError(kWantsTls);
  return transport::holds_client_hello(received);
}

}  // namespace

bool has_hung_up(const Fd& socket) {
  pollfd polled{socket.get(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) == 1;
}

FirstMessage look_at_first_message(const Fd& socket, bool has_tls) {
  std::array<std::byte, wire::kMaxHandshakeBytes - wire::kPreambleBytes> bytes;
  const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0)
    return errno == EAGAIN || errno == EINTR ? FirstMessage::kNothing : FirstMessage::kGone;
  if (got == 0)
    return FirstMessage::kGone;
  if (is_whole(std::span(bytes).first(static_cast<size_t>(got)), has_tls))
    return FirstMessage::kWhole;
  if (static_cast<size_t>(got) == bytes.size())
    throw ProtocolError("the first message of the client is too long");
  return has_hung_up(socket) ? FirstMessage::kGone : FirstMessage::kPart;
}

}  // namespace torch_remote::server
