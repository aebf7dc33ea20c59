#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "transport/frame.h"
#include "transport/send_ledger.h"

namespace torch_remote::transport {

// A part of a bulk that one frame carries.
struct Chunk {
  BulkPrefix prefix;
  std::span<const std::byte> bytes;
  bool ends_bulk;  // of one send_bulk()
  bool ends_lane;
};

// What send_bulk() was given and is not all sent, oldest first. Externally synchronised; only one
// thread takes chunks. Not to be destroyed under a lock: SentBulk.
class BulkQueue {
 public:
  bool empty() const noexcept { return bulks_.empty(); }

  // `prefix`: of the first byte.
  void push(const BulkPrefix& prefix, std::span<const std::byte> bytes, bool ends_lane,
            std::shared_ptr<SentBulk> shared) {
    bulks_.push_back({prefix, bytes, ends_lane, 0, std::move(shared)});
  }

  // The next bytes to send, `limit` at most; nothing when the queue is empty.
  std::optional<Chunk> next(size_t limit) const {
    if (bulks_.empty())
      return std::nullopt;
    const Bulk& bulk = bulks_.front();
    const size_t left = bulk.bytes.size() - bulk.sent;
    const size_t size = std::min(left, limit);
    return Chunk{{bulk.prefix.lane, bulk.prefix.offset + bulk.sent},
                 bulk.bytes.subspan(bulk.sent, size),
                 size == left,
                 size == left && bulk.ends_lane};
  }

  // `chunk` of next() is about to be written. Returns the bulk that it belongs to.
  std::shared_ptr<SentBulk> take(const Chunk& chunk) {
    Bulk& bulk = bulks_.front();
    std::shared_ptr<SentBulk> shared = bulk.shared;
    bulk.sent += chunk.bytes.size();
    if (chunk.ends_bulk)
      bulks_.pop_front();
    return shared;
  }

 private:
  struct Bulk {
    BulkPrefix prefix;
    std::span<const std::byte> bytes;
    bool ends_lane;
    size_t sent;  // so many bytes are already sent
    std::shared_ptr<SentBulk> shared;
  };

  std::deque<Bulk> bulks_;
};

}  // namespace torch_remote::transport
