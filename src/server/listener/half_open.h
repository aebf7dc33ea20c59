#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "base/fd.h"
#include "wire/handshake.h"

namespace torch_remote::server {

constexpr size_t kMaxHalfOpen = 32;  // connections without a preamble

// A connection of which the listener has not read the preamble yet, or which waits in it.
struct HalfOpen {
  using Clock = std::chrono::steady_clock;

  HalfOpen(Fd connected, Clock::time_point until);

  Fd socket;
  std::string peer;  // of identify_peer()
  Clock::time_point deadline;
  std::array<std::byte, wire::kPreambleBytes> preamble{};
  size_t received = 0;
  bool is_refused = false;  // the reason is sent; it has time to read it
  // Set when its preamble is read but all sessions are taken: when to stop waiting.
  std::optional<Clock::time_point> room_by;
  // Set when its preamble is read but its peer has failed too often: when it is served.
  std::optional<Clock::time_point> served_at;

  bool is_waiting() const { return room_by || served_at; }

  enum class Progress { kWaiting, kComplete, kGone };

  // Reads as much of the preamble as there is. For one that is refused: waits for its end.
  Progress read();
};

// Adds a connection. If there are `most` already, drop_one() comes first. False: one was dropped.
bool add(std::deque<HalfOpen>& all, HalfOpen client, size_t most);
// Drops the oldest connection of the peer that has most, if possible one without a preamble: Note
// [Limits for each peer] in base/peer_limits.h. False: there is none.
bool drop_one(std::deque<HalfOpen>& all);

}  // namespace torch_remote::server
