#include "server/listener/client_queue.h"

#include <algorithm>
#include <set>
#include <utility>

#include <poll.h>

#include "server/session/handshake.h"

namespace torch_remote::server {
namespace {

// Whether the client at the other end has closed the connection.
bool has_left(const HalfOpen& client) {
  pollfd polled{client.socket.get(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) == 1;
}

}  // namespace

void ClientQueue::add(HalfOpen client) {
  client.deadline += kWaitForProcess - kHandshakeTime;
  clients_.push_back(std::move(client));
}

bool ClientQueue::evict(const std::string& newcomer) {
  std::vector<std::string> peers;
  for (const HalfOpen& client : clients_)
    peers.push_back(client.peer);
  if (peers.empty())
    return false;
  const size_t oldest = oldest_of_busiest(peers);
  if (peers[oldest] == newcomer)
    return false;
  clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(oldest));
  return true;
}

size_t ClientQueue::wanted_processes(const PeerDelays& delays, Clock::time_point now) const {
  std::set<std::string> failed;
  size_t others = 0;
  for (const HalfOpen& client : clients_)
    if (delays.delay_of(client.peer, now).count() > 0)
      failed.insert(client.peer);
    else
      ++others;
  return others + failed.size();
}

HalfOpen ClientQueue::take_next(const Sessions& sessions) {
  const auto next = std::ranges::min_element(
      clients_, {}, [&](const HalfOpen& client) { return sessions.unproven_of(client.peer); });
  HalfOpen client = std::move(*next);
  clients_.erase(next);
  return client;
}

void ClientQueue::drop_departed() {
  std::erase_if(clients_, has_left);
}

std::vector<std::string> ClientQueue::drop_late(Clock::time_point now) {
  std::vector<std::string> peers;
  while (!clients_.empty() && clients_.front().deadline < now) {
    peers.push_back(clients_.front().peer);
    clients_.pop_front();
  }
  return peers;
}

}  // namespace torch_remote::server
