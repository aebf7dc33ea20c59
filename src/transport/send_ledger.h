#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/frame.h"

namespace torch_remote::transport {

// What was sent and not yet acknowledged or applied. Externally synchronised.
//
// A ledger that keeps frames holds each one until the peer has wholly received it, so that it can be
// sent again over another stream. What it holds of messages is never more than Totals::bytes, since
// nothing is applied before it is received; bulk bytes belong to their owners.
class SendLedger {
 public:
  // A frame as it has to be sent again.
  struct Kept {
    uint64_t sequence = 0;
    FrameKind kind = FrameKind::kMessages;
    bool last = false;  // bulk only
    BulkPrefix prefix;  // bulk only
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;  // of the bytes
  };

  // Whatever waits for the acknowledgement of a bulk's last chunk.
  struct PendingBulk {
    uint64_t sequence = 0;
    std::shared_ptr<const void> owner;
    std::function<void(bool)> on_acked;
  };

  // What an acknowledgement lets go. To be destroyed, and its callbacks called, without the lock
  // that guards the ledger.
  struct Released {
    std::vector<PendingBulk> bulks;
    std::vector<Kept> frames;
  };

  struct Totals {
    uint64_t bytes = 0;
    uint64_t calls = 0;
    uint64_t last_applied = 0;
    uint64_t calls_applied = 0;
    uint64_t calls_received = 0;  // in all messages frames that the peer has acknowledged
  };

  explicit SendLedger(bool keeps_frames) : keeps_frames_(keeps_frames) {}

  // Give the frame its number, and remember it. To be called before it is written: the answer can
  // be very quick.
  uint64_t add_messages(std::shared_ptr<const std::vector<std::byte>> payload, uint64_t calls);
  uint64_t add_chunk(const BulkPrefix& prefix, std::span<const std::byte> bytes,
                     std::shared_ptr<const void> owner);
  uint64_t add_last_chunk(const BulkPrefix& prefix, std::span<const std::byte> bytes,
                          std::shared_ptr<const void> owner, std::function<void(bool)> on_acked);

  // The counters of a header that came in. Throws ProtocolError when they claim more than was sent,
  // go back, or say that a bulk frame was applied. True: something moved.
  bool advance(uint64_t acknowledged, uint64_t applied, Released& released);

  // The same for what a peer says it has received when it resumes, which tells nothing of `applied`.
  void acknowledge(uint64_t acknowledged, Released& released);

  uint64_t acknowledged() const noexcept { return acknowledged_; }

  bool is_all_acknowledged() const noexcept { return acknowledged_ == sent_; }

  // The first frame behind that number that is not acknowledged; nothing when there is none.
  std::optional<Kept> kept_after(uint64_t sequence) const;

  // Takes out all bulks that still wait.
  std::vector<PendingBulk> take_pending();

  const Totals& totals() const noexcept { return totals_; }

 private:
  struct Messages {
    uint64_t sequence;
    uint64_t bytes;
    uint64_t calls;
  };

  void check_acknowledged(uint64_t acknowledged) const;
  void count_received(uint64_t acknowledged);
  void apply(uint64_t applied);
  void keep(Kept frame);

  bool keeps_frames_;
  uint64_t sent_ = 0;  // highest sequence number given out
  uint64_t acknowledged_ = 0;
  std::deque<Messages> messages_;  // not applied, oldest first
  size_t messages_received_ = 0;   // so many of them, at the front, are acknowledged
  std::deque<PendingBulk> bulks_;  // not acknowledged, oldest first
  std::deque<Kept> kept_;          // not acknowledged, oldest first, without gaps
  Totals totals_;
};

}  // namespace torch_remote::transport
