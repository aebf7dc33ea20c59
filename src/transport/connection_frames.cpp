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
      header = received_.make_header(frame->kind, length, frame->applied);
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

// What was applied is told when all messages that it has caused are taken: ReceiveLedger.
Connection::Impl::Messages Connection::Impl::take_messages() {
  uint64_t applied = 0;
  {
    MutexLock lock(mutex_);
    if (left_by_flush_.too_large)
      return *std::exchange(left_by_flush_.too_large, std::nullopt);
    applied = received_.applied();
  }
  Messages messages;
  messages.payload = handler_.take_messages(messages.calls);
  if (messages.payload.empty() || handler_.has_taken_all()) {
    MutexLock lock(mutex_);
    received_.note_told(applied);
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
    header = make_header(FrameKind::kMessages, payload->size());
    header.sequence = ledger_->add_messages(payload, messages.calls, header.applied);
    figures_.publish(ledger_->totals());
  }
  write_frame(header, {}, *payload);
}

std::optional<Chunk> Connection::Impl::next_chunk() {
  MutexLock lock(mutex_);
  return bulks_.next(std::min(kChunkSize, options_.limits.bulk - kBulkPrefixSize));
}

void Connection::Impl::send_chunk(const Chunk& chunk) {
  FrameHeader header;
  std::shared_ptr<SentBulk> shared;  // for the write: the ledger may release its copy before
  {
    MutexLock lock(mutex_);
    header = make_header(FrameKind::kBulk, kBulkPrefixSize + chunk.bytes.size());
    header.last = chunk.ends_lane;
    shared = bulks_.take(chunk);
    header.sequence = chunk.ends_bulk
                          ? ledger_->add_last_chunk(chunk.prefix, chunk.bytes, chunk.ends_lane,
                                                    shared, header.applied)
                          : ledger_->add_chunk(chunk.prefix, chunk.bytes, shared, header.applied);
  }
  write_frame(header, encode_bulk_prefix(chunk.prefix), chunk.bytes);
}

void Connection::Impl::send_control(FrameKind kind, std::string_view reason) {
  FrameHeader header;
  {
    MutexLock lock(mutex_);
    header = make_header(kind, reason.size());
  }
  write_frame(header, {}, std::as_bytes(std::span(reason)));
}

void Connection::Impl::send_due_ack() {
  {
    MutexLock lock(mutex_);
    const std::optional<Clock::time_point> due = received_.ack_due();
    if (!due || *due > Clock::now())
      return;
  }
  send_control(FrameKind::kAck);
}

FrameHeader Connection::Impl::make_header(FrameKind kind, size_t length) {
  return received_.make_header(kind, length, received_.told());
}

void Connection::Impl::write_frame(const FrameHeader& header, std::span<const std::byte> prefix,
                                   std::span<const std::byte> payload) {
  const std::array<std::byte, kHeaderSize> encoded = encode_header(header);
  const std::array<std::span<const std::byte>, 3> parts{encoded, prefix, payload};
  figures_.note_frame(kHeaderSize + prefix.size() + payload.size());
  outgoing_->write(parts);
}

}  // namespace torch_remote::transport
