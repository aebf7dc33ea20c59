#include "server/bytes/reply.h"

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr size_t kFrameTarget = size_t{1} << 20;

// Kept alive until a bulk reply is sent.
struct Sent {
  at::Tensor tensor;
  std::shared_ptr<const void> token;
};

}  // namespace

void Replies::attach(transport::Connection* connection) {
  MutexLock lock(mutex_);
  connection_ = connection;
}

uint64_t Replies::held_bytes() const {
  return queued_bytes_ + bulk_parts_.load() * kBulkPartCost +
         (connection_ == nullptr ? 0 : connection_->in_flight().bytes);
}

void Replies::check_held() const {
  wire::check_limit("bytes of replies that the client has not taken", held_bytes(),
                    kMaxQueuedReplyBytes);
}

bool Replies::is_half_full() {
  MutexLock lock(mutex_);
  return held_bytes() + bulk_bytes_.load() > kMaxQueuedReplyBytes / 2;
}

template <typename Append>
void Replies::append(Append&& append) {
  transport::Connection* connection = nullptr;
  {
    MutexLock lock(mutex_);
    check_held();
    append(writer_);
    if (writer_.size() >= kFrameTarget) {
      queued_bytes_ += writer_.size();
      full_.push_back(writer_.take());
    }
    connection = connection_;
  }
  if (connection != nullptr)
    connection->flush();
}

void Replies::reply(uint64_t request, std::span<const std::byte> body) {
  append([&](wire::Writer& writer) { wire::encode_reply(writer, request, body); });
}

void Replies::error(uint64_t request, const wire::Error& error) {
  if (!sends_shortages_ && (error.wanted != 0 || error.free != 0)) {
    wire::Error known = error;
    known.wanted = known.free = 0;
    return this->error(request, known);
  }
  append([&](wire::Writer& writer) { wire::encode_error(writer, request, error); });
}

void Replies::progress(uint64_t call) {
  append([&](wire::Writer& writer) { wire::encode_progress(writer, call); });
}

void Replies::warning(const wire::Warning& warning) {
  append([&](wire::Writer& writer) { wire::encode(writer, warning); });
}

void Replies::tensor(uint64_t request, const at::Tensor& tensor,
                     std::shared_ptr<const void> token) {
  const at::Tensor plain = tensor.resolve_conj().resolve_neg().contiguous();
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(plain.const_data_ptr()),
                                         plain.nbytes());
  if (bytes.size() <= wire::kMaxInlineBytes)
    return reply(request, bytes);
  part(request, bytes, std::make_shared<const Sent>(Sent{plain, std::move(token)}), {});
}

void Replies::part(uint64_t request, std::span<const std::byte> bytes,
                   std::shared_ptr<const void> owner, transport::Connection::BulkPart part) {
  transport::Connection* connection = nullptr;
  {
    MutexLock lock(mutex_);
    check_held();
    connection = connection_;
  }
  if (connection == nullptr)
    throw ConnectionError("there is no connection to reply on");
  bulk_bytes_.fetch_add(bytes.size());
  bulk_parts_.fetch_add(1);
  const auto on_acked = [this, size = bytes.size()](bool) {
    bulk_bytes_.fetch_sub(size);
    bulk_parts_.fetch_sub(1);
  };
  connection->send_bulk(request, bytes, std::move(owner), on_acked, part);
}

std::vector<std::byte> Replies::take() {
  MutexLock lock(mutex_);
  has_taken_all_ = full_.empty();
  if (full_.empty())
    return writer_.take();
  std::vector<std::byte> frame = std::move(full_.front());
  full_.pop_front();
  queued_bytes_ -= frame.size();
  return frame;
}

}  // namespace torch_remote::server
