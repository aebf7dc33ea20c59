#include "server/listener/client_queue.h"

#include <algorithm>
#include <map>
#include <utility>

#include <sys/socket.h>

#include "server/listener/half_open.h"
#include "wire/handshake.h"

namespace torch_remote::server {

size_t ClientQueue::size_of(const std::string& peer) const {
  return static_cast<size_t>(std::ranges::count(clients_, peer, &HalfOpen::peer));
}

void ClientQueue::add(HalfOpen client, Clock::time_point now) {
  client.deadline = now + kTellEvery;
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

size_t ClientQueue::wanted_processes(const PeerDelays& delays, const Sessions& sessions,
                                     Clock::time_point now) const {
  std::map<std::string, size_t> clients_of;
  for (const HalfOpen& client : clients_)
    ++clients_of[client.peer];
  size_t wanted = 0;
  for (const auto& [peer, clients] : clients_of) {
    const size_t most = delays.delay_of(peer, now).count() > 0 ? 1 : kMostUnproven;
    wanted += std::min(clients, most - std::min(most, sessions.unproven_of(peer)));
  }
  return wanted;
}

std::optional<HalfOpen> ClientQueue::take_next(const Sessions& sessions) {
  const auto unproven = [&](const HalfOpen& client) { return sessions.unproven_of(client.peer); };
  const auto next = std::ranges::min_element(clients_, {}, unproven);
  if (next == clients_.end() || unproven(*next) >= kMostUnproven)
    return std::nullopt;
  HalfOpen client = std::move(*next);
  clients_.erase(next);
  return client;
}

std::vector<std::string> ClientQueue::drop_departed() {
  std::vector<std::string> peers;
  std::erase_if(clients_, [&](const HalfOpen& client) {
    const bool has_left = has_hung_up(client.socket);
    if (has_left)
      peers.push_back(client.peer);
    return has_left;
  });
  return peers;
}

size_t ClientQueue::tell_waiting(Clock::time_point now) {
  size_t told_first = 0;
  for (HalfOpen& client : clients_) {
    if (now < client.deadline)
      continue;
    client.deadline = now + kTellEvery;
    told_first += std::exchange(client.is_told, true) ? 0 : 1;
    if ((client.decoded->route & wire::kAwaitsProcess) == 0)
      continue;
    const wire::WaitingBlock block = wire::waiting_block();
    ::send(client.socket.get(), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  return told_first;
}

}  // namespace torch_remote::server
