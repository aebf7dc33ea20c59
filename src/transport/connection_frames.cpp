// The frames that a connection writes: those sent again, messages, chunks of bulk bytes and control
// frames. On the writer thread, or on one that calls flush().
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/connection_impl.h"

namespace torch_remote::transport {
namespace {

constexpr size_t kChunkSize = size_t{1} << 20;

}  // namespace

// Skips frames that the peer has acknowledged meanwhile.
void Connection::Impl::send_again(uint64_t resend_after) {
  for (;;) {
    std::optional<SendLedger::Kept> frame;
    FrameHeader header;
    {
      MutexLock lock(mutex_);
      frame = ledger_->kept_after(resend_after);
      if (!frame)
        return;
      const bool is_bulk = frame->kind == FrameKind::kBulk;
      const size_t length = frame->bytes.size() + (is_bulk ? kBulkPrefixSize : 0);
      header = stamp(frame->kind, length, frame->applied);
      header.sequence = frame->sequence;
      header.last = frame->last;
    }
    if (frame->kind == FrameKind::kBulk)
      write_frame(header, encode_bulk_prefix(frame->prefix), frame->bytes);
    else
      write_frame(header, {}, frame->bytes);
    resend_after = frame->sequence;
  }
}

// Chooses the chunk before it takes messages, so that messages queued before the chunk go first.
void Connection::Impl::send_queued() {
  for (;;) {
    const std::optional<Chunk> chunk = next_chunk();
    send_messages();
    if (!chunk)
      return;
    send_chunk(*chunk);
  }
}

void Connection::Impl::send_messages() {
  for (;;) {
    Messages messages = take_messages();
    if (messages.payload.empty())
      return;
    send(std::move(messages));
  }
}

// The messages that a frame has caused, a failure say, must not come after a header that says that
// the frame is applied. So headers say what was applied before all messages were last taken.
Connection::Impl::Messages Connection::Impl::take_messages() {
  uint64_t applied = 0;
  {
    MutexLock lock(mutex_);
    if (too_large_)
      return *std::exchange(too_large_, std::nullopt);
    applied = applied_;
  }
  Messages messages;
  messages.payload = handler_.take_messages(messages.calls);
  if (messages.payload.empty() || handler_.has_taken_all()) {
    MutexLock lock(mutex_);
    told_applied_ = applied;
  }
  return messages;
}

void Connection::Impl::send(Messages messages) {
  check_internal(messages.payload.size() <= options_.limits.messages,
                 "a messages frame is within the limit");
  // Shared with the ledger: the peer may acknowledge a frame before we have written all of it.
  const auto payload = std::make_shared<const std::vector<std::byte>>(std::move(messages.payload));
  FrameHeader header;
  {
    MutexLock lock(mutex_);
    header = stamp(FrameKind::kMessages, payload->size(), told_applied_);
    header.sequence = ledger_->add_messages(payload, messages.calls, header.applied);
    publish_totals();
  }
  write_frame(header, {}, *payload);
}

std::optional<Connection::Impl::Chunk> Connection::Impl::next_chunk() {
  MutexLock lock(mutex_);
  if (bulks_.empty())
    return std::nullopt;
  const Bulk& bulk = bulks_.front();
  const size_t left = bulk.bytes.size() - bulk.sent;
  const size_t size = std::min({left, kChunkSize, options_.limits.bulk - kBulkPrefixSize});
  return Chunk{{bulk.lane, bulk.part.offset + bulk.sent},
               bulk.bytes.subspan(bulk.sent, size),
               size == left,
               size == left && bulk.part.is_last};
}

void Connection::Impl::send_chunk(const Chunk& chunk) {
  FrameHeader header;
  std::shared_ptr<SentBulk> shared;  // for the write: the ledger may release its copy before
  {
    MutexLock lock(mutex_);
    header = stamp(FrameKind::kBulk, kBulkPrefixSize + chunk.bytes.size(), told_applied_);
    header.last = chunk.ends_lane;
    Bulk& bulk = bulks_.front();
    shared = bulk.shared;
    if (chunk.ends_bulk) {
      header.sequence = ledger_->add_last_chunk(chunk.prefix, chunk.bytes, chunk.ends_lane,
                                                std::move(bulk.shared), header.applied);
      bulks_.pop_front();
    } else {
      header.sequence = ledger_->add_chunk(chunk.prefix, chunk.bytes, shared, header.applied);
      bulk.sent += chunk.bytes.size();
    }
  }
  write_frame(header, encode_bulk_prefix(chunk.prefix), chunk.bytes);
}

void Connection::Impl::send_control(FrameKind kind, std::string_view reason) {
  FrameHeader header;
  {
    MutexLock lock(mutex_);
    header = stamp(kind, reason.size(), told_applied_);
  }
  write_frame(header, {}, std::as_bytes(std::span(reason)));
}

void Connection::Impl::send_due_ack() {
  {
    MutexLock lock(mutex_);
    const std::optional<Clock::time_point> due = acks_.due();
    if (!due || *due > Clock::now())
      return;
  }
  send_control(FrameKind::kAck);
}

FrameHeader Connection::Impl::stamp(FrameKind kind, size_t length, uint64_t applied) {
  if (applied == applied_)
    acks_.sent();
  FrameHeader header;
  header.kind = kind;
  header.length = static_cast<uint32_t>(length);
  header.acknowledged = received_;
  header.applied = applied;
  return header;
}

void Connection::Impl::write_frame(const FrameHeader& header, std::span<const std::byte> prefix,
                                   std::span<const std::byte> payload) {
  const std::array<std::byte, kHeaderSize> encoded = encode_header(header);
  const std::array<std::span<const std::byte>, 3> parts{encoded, prefix, payload};
  // Counted before writing, so that the count is never below what the peer has received.
  bytes_sent_.fetch_add(kHeaderSize + prefix.size() + payload.size(), std::memory_order_relaxed);
  frames_sent_.fetch_add(1, std::memory_order_relaxed);
  outgoing_->write(parts);
}

}  // namespace torch_remote::transport
