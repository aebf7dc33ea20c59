#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace torch_remote::transport {

// What was sent and not yet acknowledged or applied. Externally synchronised.
class SendLedger {
 public:
  // Whatever waits for the acknowledgement of a bulk's last chunk.
  struct PendingBulk {
    uint64_t sequence = 0;
    std::shared_ptr<const void> owner;
    std::function<void(bool)> on_acked;
  };

  struct Totals {
    uint64_t bytes = 0;
    uint64_t calls = 0;
    uint64_t last_applied = 0;
  };

  // Give the frame its number, and remember it. To be called before it is written: the answer can
  // be very quick.
  uint64_t add_messages(uint64_t bytes, uint64_t calls);

  uint64_t add_chunk() noexcept { return ++sent_; }

  uint64_t add_last_chunk(std::shared_ptr<const void> owner, std::function<void(bool)> on_acked);

  // The counters of a header that came in. Throws ProtocolError when they claim more than was sent,
  // go back, or say that a bulk frame was applied. True: something moved. Bulks that are done are
  // added to `done`.
  bool advance(uint64_t acknowledged, uint64_t applied, std::vector<PendingBulk>& done);

  // Takes out all bulks that still wait.
  std::vector<PendingBulk> take_pending();

  const Totals& totals() const noexcept { return totals_; }

 private:
  struct Messages {
    uint64_t sequence;
    uint64_t bytes;
    uint64_t calls;
  };

  void apply(uint64_t applied);

  uint64_t sent_ = 0;  // highest sequence number given out
  uint64_t acknowledged_ = 0;
  std::deque<Messages> messages_;  // not applied, oldest first
  std::deque<PendingBulk> bulks_;  // not acknowledged, oldest first
  Totals totals_;
};

}  // namespace torch_remote::transport
