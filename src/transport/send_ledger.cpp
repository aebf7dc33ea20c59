#include "transport/send_ledger.h"

#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"

namespace torch_remote::transport {

uint64_t SendLedger::add_messages(uint64_t bytes, uint64_t calls) {
  messages_.push_back({sent_ + 1, bytes, calls});
  totals_.bytes += bytes;
  totals_.calls += calls;
  return ++sent_;
}

uint64_t SendLedger::add_last_chunk(std::shared_ptr<const void> owner,
                                    std::function<void(bool)> on_acked) {
  bulks_.push_back({sent_ + 1, std::move(owner), std::move(on_acked)});
  return ++sent_;
}

bool SendLedger::advance(uint64_t acknowledged, uint64_t applied, std::vector<PendingBulk>& done) {
  if (acknowledged > sent_ || acknowledged < acknowledged_) {
    throw ProtocolError("the peer acknowledges frame " + std::to_string(acknowledged) + " after " +
                        std::to_string(acknowledged_) + ", and " + std::to_string(sent_) +
                        " were sent");
  }
  const bool moved = acknowledged != acknowledged_ || applied != totals_.last_applied;
  apply(applied);
  acknowledged_ = acknowledged;
  while (!bulks_.empty() && bulks_.front().sequence <= acknowledged) {
    done.push_back(std::move(bulks_.front()));
    bulks_.pop_front();
  }
  return moved;
}

void SendLedger::apply(uint64_t applied) {
  if (applied == totals_.last_applied) {
    return;
  }
  uint64_t reached = totals_.last_applied;
  while (!messages_.empty() && messages_.front().sequence <= applied) {
    reached = messages_.front().sequence;
    totals_.bytes -= messages_.front().bytes;
    totals_.calls -= messages_.front().calls;
    messages_.pop_front();
  }
  if (reached != applied) {
    throw ProtocolError("the peer says that frame " + std::to_string(applied) + " after " +
                        std::to_string(totals_.last_applied) +
                        " was applied, which is no messages frame under way");
  }
  totals_.last_applied = applied;
}

std::vector<SendLedger::PendingBulk> SendLedger::take_pending() {
  std::vector<PendingBulk> pending(std::make_move_iterator(bulks_.begin()),
                                   std::make_move_iterator(bulks_.end()));
  bulks_.clear();
  return pending;
}

}  // namespace torch_remote::transport
