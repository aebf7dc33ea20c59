#include "client/call/relay.h"

#include <algorithm>
#include <deque>

#include "client/call/upload.h"
#include "client/memory/download_memory.h"
#include "client/memory/downloads.h"
#include "client/process/records.h"
#include "client/session/progress.h"
#include "client/session/session.h"

namespace torch_remote::client {
namespace {

constexpr size_t kRelayPieces = 8;

// A dense tensor as a vector in the order of its memory.
at::Tensor in_a_row(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

class Relay {
 public:
  Relay(const at::Tensor& destination, const at::Tensor& source)
      : destination_(destination),
        source_(in_a_row(source)),
        from_(*session_of(*record_of(source))),
        to_(*session_of(*record_of(destination))) {}

  void run() {
    const TransferProgress progress(source_.nbytes(), false);
    while (asked_ < source_.numel() || !arriving_.empty()) {
      while (!leaving_.empty() && leaving_.front()->done)
        leaving_.pop_front();
      while (asked_ < source_.numel() && arriving_.size() + leaving_.size() < kRelayPieces)
        ask();
      if (arriving_.empty())
        to_.wait(leaving_.front(), "a copy to another server");
      else
        forward();
    }
  }

 private:
  struct Piece {
    Download download;
    std::shared_ptr<at::Tensor> memory;
  };

  void ask() {
    const int64_t most = static_cast<int64_t>(kRelayPiece) / source_.itemsize();
    const int64_t count = std::min(most, source_.numel() - asked_);
    const auto memory =
        std::make_shared<at::Tensor>(empty_for_download({count}, {1}, source_.scalar_type()));
    from_.begin_call({nullptr, record_of(source_)->name});
    const at::Tensor part = source_.narrow(0, asked_, count);
    arriving_.push_back({start_download(part, memory_of(*memory), memory), memory});
    asked_ += count;
  }

  void forward() {
    from_.wait(arriving_.front().download.request, "a copy to another server");
    const std::shared_ptr<at::Tensor> memory = std::move(arriving_.front().memory);
    arriving_.pop_front();
    to_.begin_call();
    leaving_.push_back(upload_part(destination_, sent_, memory_of(*memory), memory));
    sent_ += memory->nbytes();
  }

  const at::Tensor destination_;
  const at::Tensor source_;
  Session& from_;
  Session& to_;
  int64_t asked_ = 0;               // elements
  uint64_t sent_ = 0;               // bytes
  std::deque<Piece> arriving_;      // asked for, in order
  std::deque<RequestPtr> leaving_;  // uploads, in order
};

}  // namespace

void relay(const at::Tensor& destination, const at::Tensor& source) {
  check_exists(destination);
  Relay(destination, source).run();
}

}  // namespace torch_remote::client
