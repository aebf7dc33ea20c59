#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/peer_limits.h"
#include "server/listener/half_open.h"
#include "server/listener/sessions.h"

namespace torch_remote::server {

// New clients, until a process is ready for them; the oldest first. They wait as long as they like,
// and are told that they wait. Confined to one thread.
class ClientQueue {
 public:
  using Clock = HalfOpen::Clock;

  // A client is told that often that it waits. It takes a silence of 8 s for an error.
  static constexpr std::chrono::seconds kTellEvery{2};

  size_t size() const { return clients_.size(); }

  bool empty() const { return clients_.empty(); }

  // Of this peer.
  size_t size_of(const std::string& peer) const;

  // From now on its `deadline` is when to tell it next that it waits.
  void add(HalfOpen client, Clock::time_point now);

  // It gets the next process.
  void add_first(HalfOpen client) { clients_.push_front(std::move(client)); }

  // Closes the connection of a waiting client, the oldest one of the peer that has most of them,
  // unless that is `newcomer`. The client tries again. False: there is none.
  bool evict(const std::string& newcomer);
  // How many processes are wanted: one for each client that may have one now, but one at a time for
  // all clients of a peer that has failed too often. Starting one costs much more than connecting.
  size_t wanted_processes(const PeerDelays& delays, const Sessions& sessions,
                          Clock::time_point now) const;
  // The client that has waited longest of the peer with the fewest sessions that have not begun:
  // one that opens many connections waits behind the others. Empty: nobody may have a process now,
  // because each peer has kMostUnproven of them.
  std::optional<HalfOpen> take_next(const Sessions& sessions);
  // Forgets clients that have left, and returns their peers.
  std::vector<std::string> drop_departed();
  // Tells clients that they wait, those that understand it. Returns how many were told for the
  // first time.
  size_t tell_waiting(Clock::time_point now);

  // For a child of fork().
  void forget() { clients_.clear(); }

 private:
  std::deque<HalfOpen> clients_;
};

}  // namespace torch_remote::server
