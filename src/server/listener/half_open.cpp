#include "server/listener/half_open.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "base/peer_limits.h"
#include "base/platform.h"
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

}  // namespace

HalfOpen::HalfOpen(Fd connected, Clock::time_point until)
    : socket(std::move(connected)), peer(identify_peer(socket)), deadline(until) {}

HalfOpen::Progress HalfOpen::read() {
  if (is_refused)
    return wait_for_close(*this);
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

bool add(std::deque<HalfOpen>& all, HalfOpen client, size_t most) {
  const bool has_room = all.size() < most;
  if (!has_room)
    drop_one(all);
  all.push_back(std::move(client));
  return has_room;
}

bool drop_one(std::deque<HalfOpen>& all) {
  if (all.empty())
    return false;
  std::vector<std::string> peers;
  for (const HalfOpen& one : all)
    peers.push_back(one.peer);
  const auto oldest = all.begin() + static_cast<ptrdiff_t>(oldest_of_busiest(peers));
  const auto silent = std::find_if(oldest, all.end(), [&](const HalfOpen& one) {
    return one.peer == oldest->peer && !one.is_waiting();
  });
  all.erase(silent == all.end() ? oldest : silent);
  return true;
}

}  // namespace torch_remote::server
