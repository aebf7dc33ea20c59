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
#include "wire/warning.h"

namespace torch_remote::server {

// Limit for replies that the client has not received, queued or sent. More ends the session.
// The bytes of bulk replies do not count here: they are in storages, or count as ReplyMemory.
constexpr uint64_t kMaxQueuedReplyBytes = uint64_t{256} << 20;
// What a bulk reply, or a part of one, counts there: the entries in queues that it needs.
constexpr uint64_t kBulkPartCost = 512;

// Replies to be sent. Thread-safe: the executor adds them and never waits for the network; the
// connection's writer thread takes them.
class Replies {
 public:
  // Before the first reply: the client has wire::kShortageCapability.
  void send_shortages() { sends_shortages_ = true; }

  // Null while there is no connection; replies are then kept.
  void attach(transport::Connection* connection);

  void reply(uint64_t request, std::span<const std::byte> body);
  void error(uint64_t request, const wire::Error& error);
  // The call with this number is done, and the frame that it is in is not.
  void progress(uint64_t call);
  void warning(const wire::Warning& warning);
  // Sends the elements of a CPU tensor in order. Small ones go inside a REPLY, others as bulk bytes
  // on lane `request`, without a REPLY. These are sent from the tensor's own memory if it is
  // contiguous, else from a copy; `token` is held until they are sent.
  void tensor(uint64_t request, const at::Tensor& tensor, std::shared_ptr<const void> token);

  // Sends a part of a bulk reply; the parts of a request come in order. `owner` keeps the bytes
  // alive until the client has received them.
  void part(uint64_t request, std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
            transport::Connection::BulkPart part);

  // Half of kMaxQueuedReplyBytes, counting all that the client has not received, bulk bytes too.
  bool is_half_full();

  // The next frame to send; empty for none.
  std::vector<std::byte> take();

  // The last take() left nothing. For the thread that calls take().
  bool has_taken_all() const { return has_taken_all_; }

 private:
  uint64_t held_bytes() const REQUIRES(mutex_);
  // Throws ProtocolError: the client asks and does not take the answers.
  void check_held() const REQUIRES(mutex_);
  template <typename Append>
  void append(Append&& append);

  Mutex mutex_;
  wire::Writer writer_ GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> full_ GUARDED_BY(mutex_);  // frames of full size
  uint64_t queued_bytes_ GUARDED_BY(mutex_) = 0;                // in full_
  transport::Connection* connection_ GUARDED_BY(mutex_) = nullptr;
  std::atomic<bool> has_taken_all_{true};
  std::atomic<uint64_t> bulk_bytes_{0};  // bulk bytes not yet received
  std::atomic<uint64_t> bulk_parts_{0};  // and the parts that they come in
  bool sends_shortages_ = false;
};

}  // namespace torch_remote::server
