#include "server/listener/half_open.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/peer_limits.h"
#include "base/platform.h"
#include "server/session/handshake.h"
#include "transport/client_hello.h"
#include "transport/tls_error.h"
#include "wire/handshake.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// Closing a socket with unread bytes would reset the connection before the client reads the reason.
HalfOpen::Progress wait_for_close(const HalfOpen& client) {
  std::array<std::byte, wire::kMaxHandshakeBytes> unread;
  const ssize_t got = ::recv(client.socket.get(), unread.data(), unread.size(), MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)) ? HalfOpen::Progress::kWaiting
                                                                     : HalfOpen::Progress::kGone;
}

bool is_whole(std::span<const std::byte> received, bool has_tls) {
  if (!has_tls)
    return wire::holds_hello(received);
  if (!transport::looks_like_tls(received))
    throw ProtocolError(kWantsTls);
  return transport::holds_client_hello(received);
}

}  // namespace

HalfOpen::HalfOpen(Fd connected, bool tls, Clock::time_point until)
    : socket(std::move(connected)), peer(identify_peer(socket)), deadline(until), has_tls(tls) {}

HalfOpen::Progress HalfOpen::read() {
  if (is_refused)
    return wait_for_close(*this);
  if (is_whole)
    return has_hung_up(socket) ? Progress::kGone : Progress::kComplete;
  if (!decoded) {
    if (const Progress progress = read_preamble(); progress != Progress::kComplete)
      return progress;
    decoded = wire::decode_preamble(preamble);
  }
  return read_first_message();
}

HalfOpen::Progress HalfOpen::read_preamble() {
  while (received < preamble.size()) {
    const ssize_t got =
        ::recv(socket.get(), preamble.data() + received, preamble.size() - received, MSG_DONTWAIT);
    if (got == 0)
      return Progress::kGone;
    if (got < 0)
      return errno == EAGAIN || errno == EINTR ? Progress::kWaiting : Progress::kGone;
    received += static_cast<size_t>(got);
  }
  return Progress::kComplete;
}

// A client of another version may have another HELLO, so that is found out first; with TLS the
// refusal comes later.
HalfOpen::Progress HalfOpen::read_first_message() {
  if (decoded->intent == 0 || must_speak) {
    if (!has_tls)
      wire::agree_as(wire::Side::kServer, decoded->min, decoded->max);
    const FirstMessage found = look_at_first_message(socket, has_tls);
    has_part = found == FirstMessage::kPart;
    if (found == FirstMessage::kGone)
      return Progress::kGone;
    if (found != FirstMessage::kWhole)
      return Progress::kWaiting;
  }
  is_whole = true;
  return Progress::kComplete;
}

std::optional<HalfOpen> add_one(std::deque<HalfOpen>& all, HalfOpen newcomer) {
  all.push_back(std::move(newcomer));
  return all.size() > kMaxHalfOpen ? drop_one(all) : std::nullopt;
}

std::optional<HalfOpen> drop_one(std::deque<HalfOpen>& all) {
  if (all.empty())
    return std::nullopt;
  std::vector<std::string> peers;
  for (const HalfOpen& one : all)
    peers.push_back(one.peer);
  const std::string busiest = peers[oldest_of_busiest(peers)];
  const auto is_silent = [&](const HalfOpen& one) {
    return one.peer == busiest && !one.is_waiting();
  };
  auto dropped = std::ranges::find_if(all, is_silent);
  if (dropped == all.end())
    dropped =
        std::prev(std::ranges::find(all.rbegin(), all.rend(), busiest, &HalfOpen::peer).base());
  HalfOpen taken = std::move(*dropped);
  all.erase(dropped);
  return taken;
}

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
