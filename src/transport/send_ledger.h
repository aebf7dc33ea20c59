#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/frame.h"

namespace torch_remote::transport {

// The bytes of one send_bulk(). The queue, the ledger and a thread that writes them share it; the
// last that lets go of it destroys the owner and then runs on_acked(). So when on_acked() runs, the
// connection uses the bytes no more: the peer can acknowledge a frame before our write of it has
// returned. Not to be destroyed under a lock.
class SentBulk {
 public:
  SentBulk(std::shared_ptr<const void> owner, std::function<void(bool)> on_acked)
      : owner_(std::move(owner)), on_acked_(std::move(on_acked)) {}

  ~SentBulk() {
    owner_.reset();
    on_acked_(is_received_);
  }

  SentBulk(const SentBulk&) = delete;
  SentBulk& operator=(const SentBulk&) = delete;

  // By the reader thread, before it lets go.
  void note_received() noexcept { is_received_ = true; }

 private:
  std::shared_ptr<const void> owner_;
  const std::function<void(bool)> on_acked_;  // does not throw
  bool is_received_ = false;
};

// Frames that were sent and are not yet acknowledged or applied. Externally synchronised.
//
// With `keeps_frames`, each frame is kept until the peer has received it whole, to be sent again
// over a new stream. Messages kept are at most Totals::bytes, because a frame is received before it
// is applied; the bytes of bulks belong to their owners.
class SendLedger {
 public:
  // A frame, with all that is needed to send it again.
  struct Kept {
    uint64_t sequence = 0;
    FrameKind kind = FrameKind::kMessages;
    bool last = false;  // bulk only
    BulkPrefix prefix;  // bulk only
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;  // of the bytes
    uint64_t applied = 0;               // what its header says
  };

  // A bulk whose last chunk is not acknowledged.
  struct PendingBulk {
    uint64_t sequence = 0;
    std::shared_ptr<SentBulk> sent;
  };

  // What an acknowledgement releases. Destroy it without the ledger's lock.
  struct Released {
    std::vector<PendingBulk> bulks;
    std::vector<Kept> frames;
  };

  struct Totals {
    uint64_t bytes = 0;  // with kFrameCost for each frame
    uint64_t calls = 0;
    uint64_t last_applied = 0;
    uint64_t calls_applied = 0;
    uint64_t calls_received = 0;  // in all messages frames that the peer has acknowledged
  };

  explicit SendLedger(bool keeps_frames) : keeps_frames_(keeps_frames) {}

  // These return the number of the frame. Call before writing: the acknowledgement may come at
  // once. `applied` is what the frame's header says. The last chunk is that of one send_bulk().
  uint64_t add_messages(std::shared_ptr<const std::vector<std::byte>> payload, uint64_t calls,
                        uint64_t applied);
  uint64_t add_chunk(const BulkPrefix& prefix, std::span<const std::byte> bytes,
                     std::shared_ptr<const void> owner, uint64_t applied);
  uint64_t add_last_chunk(const BulkPrefix& prefix, std::span<const std::byte> bytes,
                          bool ends_lane, std::shared_ptr<SentBulk> sent, uint64_t applied);

  // Takes the counters of a received header. True: one has changed. Throws ProtocolError when they
  // claim more than was sent, or say that a bulk frame was applied.
  bool advance(uint64_t acknowledged, uint64_t applied, Released& released);

  // The same for the number in a peer's resume request, which says nothing of `applied`.
  void acknowledge(uint64_t acknowledged, Released& released);

  uint64_t acknowledged() const noexcept { return acknowledged_; }

  bool is_all_acknowledged() const noexcept { return acknowledged_ == sent_; }

  // The first unacknowledged frame after that number; nothing when there is none.
  std::optional<Kept> kept_after(uint64_t sequence) const;

  // All that is not acknowledged, when nothing is sent any more.
  Released take_all();

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
  uint64_t sent_ = 0;  // highest sequence number in use
  uint64_t acknowledged_ = 0;
  std::deque<Messages> messages_;  // not applied, oldest first
  size_t messages_received_ = 0;   // so many, at the front, are acknowledged
  std::deque<PendingBulk> bulks_;  // not acknowledged, oldest first
  std::deque<Kept> kept_;          // not acknowledged, oldest first, without gaps
  Totals totals_;
};

}  // namespace torch_remote::transport
