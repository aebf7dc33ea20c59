#include "base/peer_limits.h"

#include <algorithm>

namespace torch_remote {

size_t oldest_of_busiest(const std::vector<std::string>& peers) {
  std::map<std::string, size_t> counts;
  for (const std::string& peer : peers)
    ++counts[peer];
  const auto busiest = std::max_element(
      peers.begin(), peers.end(),
      [&](const auto& one, const auto& other) { return counts[one] < counts[other]; });
  return static_cast<size_t>(busiest - peers.begin());
}

bool is_local_peer(std::string_view peer) {
  return peer.starts_with("uid ") || peer.starts_with("127.") || peer == "::/64";
}

void PeerDelays::note_failure(const std::string& peer, Clock::time_point now) {
  if (failures_.find(peer) == failures_.end())
    make_room(now);
  Failures& failures = failures_[peer];
  if (now - failures.last >= kMemory)
    failures.count = 0;
  failures.count = std::min(failures.count + 1, 1000);
  failures.last = now;
}

void PeerDelays::note_success(const std::string& peer) {
  failures_.erase(peer);
}

std::chrono::milliseconds PeerDelays::delay_of(const std::string& peer,
                                               Clock::time_point now) const {
  const auto found = failures_.find(peer);
  if (found == failures_.end() || now - found->second.last >= kMemory ||
      found->second.count < kFreeFailures)
    return std::chrono::milliseconds(0);
  const int doublings = std::min(found->second.count - kFreeFailures, 10);
  return std::min<std::chrono::milliseconds>(kFirstDelay * (1 << doublings), kLongestDelay);
}

void PeerDelays::make_room(Clock::time_point now) {
  if (failures_.size() < kMostPeers)
    return;
  std::erase_if(failures_, [&](const auto& entry) { return now - entry.second.last >= kMemory; });
  if (failures_.size() < kMostPeers)
    return;
  failures_.erase(std::min_element(
      failures_.begin(), failures_.end(),
      [](const auto& one, const auto& other) { return one.second.last < other.second.last; }));
}

}  // namespace torch_remote
