#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace torch_remote::client {

// How many calls may be under way: submitted, and not yet applied by the server. Thread-safe; one
// thread at a time calls progress().
//
// The backlog of a server is what it has received and not applied. A server without backlog gets a
// full window, however long the round trip is. One with a backlog gets about two seconds of work,
// by the rate at which it applies calls; calls on the wire that were submitted before the backlog
// was known do not count. Until the rate is known, the client may double what is under way. A
// session begins with a small window, so that its first burst does not flood a slow server. One
// that does less than that in two seconds is slow, and stays so until it is seen to be faster.
class CallWindow {
 public:
  using Clock = std::chrono::steady_clock;

  // The first, until the server has applied as many; the smallest while no rate is known.
  static constexpr uint64_t kFirst = 256;
  static constexpr uint64_t kLeast = 2;  // one that runs and one that waits
  static constexpr uint64_t kFull = 65536;
  static constexpr uint64_t kBacklog = 64;  // with fewer calls to do a server has no backlog

  // Numbers of calls since the session began.
  struct Totals {
    uint64_t submitted = 0;
    uint64_t received = 0;  // in frames that the server has acknowledged
    uint64_t applied = 0;
    bool is_in_frame = false;  // the server works on a frame that takes long
  };

  // Whether another call may be submitted while this many are under way.
  bool has_room(uint64_t under_way) noexcept {
    if (under_way < window_.load(std::memory_order_relaxed))
      return true;
    has_refused_.store(true, std::memory_order_relaxed);
    return false;
  }

  // Called when the server has acknowledged or applied something.
  void progress(const Totals& calls, Clock::time_point now) noexcept;

 private:
  // A server with a backlog.
  struct Busy {
    Clock::time_point since;       // begin of the interval over which the rate is measured
    uint64_t applied = 0;          // at `since`
    uint64_t submitted = 0;        // when the backlog was first seen
    uint64_t allowed = 0;          // window until the rate is known
    std::optional<double> rate{};  // calls per second
    bool was_idle = false;         // at the last progress() the server had nothing to do
  };

  static bool is_slow(const Busy& busy) noexcept;

  static Busy begin_busy(const Totals& calls, Clock::time_point now) noexcept;
  static void measure(Busy& busy, const Totals& calls, Clock::time_point now) noexcept;
  static uint64_t window_for(const Busy& busy, const Totals& calls) noexcept;

  std::atomic<uint64_t> window_{kFirst};
  std::atomic<bool> has_refused_{false};  // since the last progress()
  std::optional<Busy> busy_;              // used only by the thread that calls progress()
};

}  // namespace torch_remote::client
