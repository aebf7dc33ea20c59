#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "transport/connection.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace torch_remote::server {

// What a client may leave unread before its session ends: it asks and does not listen. Counts replies
// that wait and those that were sent and are kept until the client has received them.
constexpr uint64_t kMaxQueuedReplyBytes = uint64_t{256} << 20;

// Replies on their way out. Thread-safe: the executor puts them in and never waits for the network,
// the connection's writer thread takes them.
class Replies {
 public:
  // Null while there is no connection; then replies wait.
  void attach(transport::Connection* connection);

  void reply(uint64_t request, std::span<const std::byte> body);
  void error(uint64_t request, const wire::Error& error);
  // The elements of a CPU tensor in order. Small ones go inside a REPLY, others as bulk bytes on
  // the lane `request`, without a REPLY: straight from the tensor's memory where that is
  // contiguous, and then `token` is held until they have been sent.
  void tensor(uint64_t request, const at::Tensor& tensor, std::shared_ptr<const void> token);

  // Of kMaxQueuedReplyBytes, counting all that the client has not received yet, bulk bytes too.
  bool is_half_full();

  // What goes out next, as one frame; empty when there is nothing.
  std::vector<std::byte> take();

 private:
  uint64_t held_bytes() const REQUIRES(mutex_);
  template <typename Append>
  void append(Append&& append);

  Mutex mutex_;
  wire::Writer writer_ GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> full_ GUARDED_BY(mutex_);  // frames that are long enough
  uint64_t queued_bytes_ GUARDED_BY(mutex_) = 0;                // in full_
  transport::Connection* connection_ GUARDED_BY(mutex_) = nullptr;
  std::atomic<uint64_t> bulk_bytes_{0};  // on their way
};

}  // namespace torch_remote::server
