#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "base/peer_limits.h"
#include "server/listener/half_open.h"
#include "server/listener/sessions.h"

namespace torch_remote::server {

// New clients, until a process is ready for them; the oldest first. Confined to one thread.
class ClientQueue {
 public:
  using Clock = HalfOpen::Clock;

  // How long a client waits for a process, from when it connected. Then the connection is closed
  // and the client tries again by itself; it takes a silence of 8 s for an error.
  static constexpr std::chrono::milliseconds kWaitForProcess{6500};

  size_t size() const { return clients_.size(); }

  bool empty() const { return clients_.empty(); }

  // The wait is counted from when it connected: `deadline` is for its preamble until now.
  void add(HalfOpen client);

  // It gets the next process.
  void add_first(HalfOpen client) { clients_.push_front(std::move(client)); }

  // Closes the connection of a waiting client, the oldest one of the peer that has most of them,
  // unless that is `newcomer`. The client tries again. False: there is none.
  bool evict(const std::string& newcomer);
  // How many processes are wanted: one for each client, but one at a time for all clients of a peer
  // that has failed to authenticate too often. Starting a process costs much more than connecting.
  size_t wanted_processes(const PeerDelays& delays, Clock::time_point now) const;
  // The client that has waited longest of the peer with the fewest sessions that have not begun:
  // one that opens many connections waits behind the others. There must be one.
  HalfOpen take_next(const Sessions& sessions);
  // Forgets clients that have left.
  void drop_departed();
  // Forgets clients that have waited too long, and returns their peers.
  std::vector<std::string> drop_late(Clock::time_point now);

  // For a child of fork().
  void forget() { clients_.clear(); }

 private:
  std::deque<HalfOpen> clients_;
};

}  // namespace torch_remote::server
