#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace torch_remote::client {

// How many calls may be under way: submitted, and not yet applied by the server. Thread-safe;
// progress() is for one thread at a time.
//
// A server that keeps up gets a full window, however long the line is and however long the client
// has paused: what it has received and not applied is its backlog, and what is on the wire says
// nothing about it. One with a backlog gets about two seconds of work, by the rate at which it
// applies calls while it has that backlog; calls on the wire that were submitted before the backlog
// was known do not count. Until that rate is known, the client may double what is under way. A
// session begins with a small window, so that its first burst does not flood a slow server.
class CallWindow {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr uint64_t kFirst = 256;  // until the server has applied so many; the smallest
  static constexpr uint64_t kFull = 65536;
  static constexpr uint64_t kBacklog = 64;  // a server with less to do keeps up

  // Of calls, since the session began.
  struct Totals {
    uint64_t submitted = 0;
    uint64_t received = 0;  // the server has acknowledged their frames
    uint64_t applied = 0;
  };

  // Whether another call may be submitted when so many are under way.
  bool has_room(uint64_t under_way) noexcept {
    if (under_way < window_.load(std::memory_order_relaxed))
      return true;
    has_refused_.store(true, std::memory_order_relaxed);
    return false;
  }

  // The server has acknowledged or applied something.
  void progress(const Totals& calls, Clock::time_point now) noexcept;

 private:
  // A server that is behind: since when, and what was known then.
  struct Busy {
    Clock::time_point since;       // begin of the interval over which the rate is measured
    uint64_t applied = 0;          // at that time
    uint64_t submitted = 0;        // when the backlog was first seen
    uint64_t allowed = 0;          // until the rate is known
    std::optional<double> rate{};  // calls in a second
  };

  static Busy begin_busy(const Totals& calls, Clock::time_point now) noexcept;
  static void measure(Busy& busy, const Totals& calls, Clock::time_point now) noexcept;
  static uint64_t window_for(const Busy& busy, const Totals& calls) noexcept;

  std::atomic<uint64_t> window_{kFirst};
  std::atomic<bool> has_refused_{false};  // since the last progress()
  std::optional<Busy> busy_;              // of the thread that calls progress()
};

}  // namespace torch_remote::client
