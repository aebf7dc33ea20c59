#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "transport/frame.h"

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

// Which of the peer's frames were received and applied, and what our headers say of it. Externally
// synchronised.
//
// The messages that a frame has caused, a failure say, must not come after a header that says that
// the frame is applied. So headers say what was applied before all messages were last taken:
// note_told().
class ReceiveLedger {
 public:
  using Clock = AckPolicy::Clock;

  // The highest sequence received whole, and that applied.
  uint64_t received() const noexcept { return received_; }

  uint64_t applied() const noexcept { return applied_; }

  // What the next header says is applied.
  uint64_t told() const noexcept { return told_; }

  void note_told(uint64_t applied) noexcept { told_ = applied; }

  // Throws ProtocolError unless the frame is the one after the last.
  void check_next(const FrameHeader& header) const {
    if (is_sequenced(header.kind) && header.sequence != received_ + 1) {
      throw ProtocolError("frame " + std::to_string(header.sequence) + " came after frame " +
                          std::to_string(received_));
    }
  }

  void note_received(const FrameHeader& header, Clock::time_point now) noexcept {
    received_ = header.sequence;
    acks_.received(header.length, header.last, now);
  }

  // False: the frame was not received.
  bool note_applied(uint64_t sequence, Clock::time_point now) noexcept {
    if (sequence > received_)
      return false;
    if (sequence > applied_) {
      applied_ = sequence;
      acks_.applied(now);
    }
    return true;
  }

  // A header that is about to be written. `applied` is told(), or less for a frame sent again.
  FrameHeader make_header(FrameKind kind, size_t length, uint64_t applied) noexcept {
    if (applied == applied_)
      acks_.sent();
    FrameHeader header;
    header.kind = kind;
    header.length = static_cast<uint32_t>(length);
    header.acknowledged = received_;
    header.applied = applied;
    return header;
  }

  // When to send a frame that only carries the counters: as AckPolicy::due().
  std::optional<Clock::time_point> ack_due() const noexcept { return acks_.due(); }

  // Over a new stream.
  void note_resumed() noexcept { acks_.resumed(); }

 private:
  uint64_t received_ = 0;
  uint64_t applied_ = 0;
  uint64_t told_ = 0;
  AckPolicy acks_;
};

}  // namespace torch_remote::transport
