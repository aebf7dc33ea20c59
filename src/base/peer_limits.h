#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace torch_remote {

// Note [Limits for each peer]
//
// A peer is what identify_peer() tells: an address, or a user of this machine. Where only so many
// connections may be unauthenticated at a time, one more ends one of the peer that has most of
// them, mostly its oldest; so a peer that opens many ends its own, and no other peer's. A peer that
// has failed to authenticate several times waits before each new session. A client that resumes
// never waits: nobody can guess a session's secret.

// The index of the oldest entry of the peer that has most entries. `peers` is not empty, and the
// oldest entry is first.
size_t oldest_of_busiest(const std::vector<std::string>& peers);

// Whether identify_peer() has told a user of this machine or a loopback address. There tunnels end,
// which have many clients.
bool is_local_peer(std::string_view peer);

// How long a peer must wait because it has failed to authenticate. Confined to one thread.
class PeerDelays {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kFreeFailures = 5;
  static constexpr std::chrono::seconds kFirstDelay{1};
  static constexpr std::chrono::seconds kLongestDelay{4};  // the client waits 8 s for an answer
  static constexpr std::chrono::seconds kMemory{60};       // after the last failure
  static constexpr size_t kMostPeers = 1024;

  void note_failure(const std::string& peer, Clock::time_point now);
  void note_success(const std::string& peer);
  // For a connection that comes now.
  std::chrono::milliseconds delay_of(const std::string& peer, Clock::time_point now) const;

  size_t size() const { return failures_.size(); }

 private:
  struct Failures {
    int count = 0;
    Clock::time_point last;
  };

  void make_room(Clock::time_point now);

  std::map<std::string, Failures> failures_;
};

}  // namespace torch_remote
