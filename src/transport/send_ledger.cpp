#include "transport/send_ledger.h"

#include <iterator>
#include <string>

#include "base/error.h"

namespace torch_remote::transport {

uint64_t SendLedger::add_messages(std::shared_ptr<const std::vector<std::byte>> payload,
                                  uint64_t calls, uint64_t applied) {
  const std::span<const std::byte> bytes = *payload;
  const uint64_t cost = bytes.size() + kFrameCost;
  messages_.push_back({++sent_, cost, calls});
  totals_.bytes += cost;
  totals_.calls += calls;
  keep({sent_, FrameKind::kMessages, false, {}, bytes, std::move(payload), applied});
  return sent_;
}

uint64_t SendLedger::add_chunk(const BulkPrefix& prefix, std::span<const std::byte> bytes,
                               std::shared_ptr<const void> owner, uint64_t applied) {
  keep({++sent_, FrameKind::kBulk, false, prefix, bytes, std::move(owner), applied});
  return sent_;
}

uint64_t SendLedger::add_last_chunk(const BulkPrefix& prefix, std::span<const std::byte> bytes,
                                    bool ends_lane, std::shared_ptr<SentBulk> sent,
                                    uint64_t applied) {
  keep({++sent_, FrameKind::kBulk, ends_lane, prefix, bytes, sent, applied});
  bulks_.push_back({sent_, std::move(sent)});
  return sent_;
}

void SendLedger::keep(Kept frame) {
  if (keeps_frames_)
    kept_.push_back(std::move(frame));
}

std::optional<SendLedger::Kept> SendLedger::kept_after(uint64_t sequence) const {
  if (kept_.empty() || kept_.back().sequence <= sequence)
    return std::nullopt;
  const uint64_t first = kept_.front().sequence;
  return kept_[sequence < first ? 0 : sequence + 1 - first];
}

bool SendLedger::advance(uint64_t acknowledged, uint64_t applied, Released& released) {
  const bool moved = acknowledged != acknowledged_ || applied != totals_.last_applied;
  check_acknowledged(acknowledged);
  count_received(acknowledged);
  apply(applied);  // first, because it throws too
  acknowledge(acknowledged, released);
  return moved;
}

void SendLedger::check_acknowledged(uint64_t acknowledged) const {
  if (acknowledged > sent_ || acknowledged < acknowledged_) {
    throw ProtocolError("the peer acknowledges frame " + std::to_string(acknowledged) + " after " +
                        std::to_string(acknowledged_) + ", and " + std::to_string(sent_) +
                        " were sent");
  }
}

void SendLedger::acknowledge(uint64_t acknowledged, Released& released) {
  check_acknowledged(acknowledged);
  count_received(acknowledged);
  acknowledged_ = acknowledged;
  while (!bulks_.empty() && bulks_.front().sequence <= acknowledged) {
    released.bulks.push_back(std::move(bulks_.front()));
    bulks_.pop_front();
  }
  while (!kept_.empty() && kept_.front().sequence <= acknowledged) {
    released.frames.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

void SendLedger::count_received(uint64_t acknowledged) {
  while (messages_received_ < messages_.size() &&
         messages_[messages_received_].sequence <= acknowledged) {
    totals_.calls_received += messages_[messages_received_].calls;
    ++messages_received_;
  }
}

// decode_header() has checked applied <= acknowledged, so count_received() has counted the frame.
void SendLedger::apply(uint64_t applied) {
  if (applied <= totals_.last_applied)
    return;  // frames that are sent again say what they said the first time
  uint64_t reached = totals_.last_applied;
  while (!messages_.empty() && messages_.front().sequence <= applied) {
    reached = messages_.front().sequence;
    totals_.bytes -= messages_.front().bytes;
    totals_.calls -= messages_.front().calls;
    totals_.calls_applied += messages_.front().calls;
    messages_.pop_front();
    --messages_received_;
  }
  if (reached != applied) {
    throw ProtocolError("the peer says that frame " + std::to_string(applied) + " after " +
                        std::to_string(totals_.last_applied) +
                        " was applied, but it is no messages frame that waits for that");
  }
  totals_.last_applied = applied;
}

SendLedger::Released SendLedger::take_all() {
  Released all;
  all.bulks.assign(std::make_move_iterator(bulks_.begin()), std::make_move_iterator(bulks_.end()));
  all.frames.assign(std::make_move_iterator(kept_.begin()), std::make_move_iterator(kept_.end()));
  bulks_.clear();
  kept_.clear();
  return all;
}

}  // namespace torch_remote::transport
