#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace torch_remote::transport {

// Decides when an acknowledgement is sent in a frame of its own: at once after 8 frames, 1 MiB, 8
// applied frames or the last chunk of a bulk, else 20 ms after the first unacknowledged frame.
// Every frame carries the counters too, and resets this. Externally synchronised.
class AckPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  void received(uint64_t bytes, bool last_of_bulk, Clock::time_point now) noexcept {
    ++frames_;
    bytes_ += bytes;
    at_once_ = at_once_ || last_of_bulk || frames_ >= kFrames || bytes_ >= kBytes;
    start_clock(now);
  }

  void applied(Clock::time_point now) noexcept {
    ++applied_;
    at_once_ = at_once_ || applied_ >= kApplied;
    start_clock(now);
  }

  // Acknowledgements may be lost with the old stream, so the counters are sent again.
  void resumed() noexcept { at_once_ = true; }

  // A frame with the current counters is being sent.
  void sent() noexcept { *this = AckPolicy(); }

  // When to send one: a time in the past for "at once", nothing when all is acknowledged.
  std::optional<Clock::time_point> due() const noexcept {
    if (at_once_)
      return Clock::time_point::min();
    return due_;
  }

 private:
  static constexpr uint32_t kFrames = 8;
  static constexpr uint64_t kBytes = uint64_t{1} << 20;
  static constexpr uint32_t kApplied = 8;
  static constexpr std::chrono::milliseconds kDelay{20};

  void start_clock(Clock::time_point now) noexcept {
    if (!due_)
      due_ = now + kDelay;
  }

  uint32_t frames_ = 0;
  uint64_t bytes_ = 0;
  uint32_t applied_ = 0;
  bool at_once_ = false;
  std::optional<Clock::time_point> due_;
};

}  // namespace torch_remote::transport
