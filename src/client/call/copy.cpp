#include "client/call/copy.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include "base/platform.h"
#include "client/call/direct_copy.h"
#include "client/call/dispatch.h"
#include "client/call/prefetch.h"
#include "client/call/upload.h"
#include "client/machines/machines.h"
#include "client/memory/downloads.h"
#include "client/memory/pinned.h"
#include "client/memory/storage.h"
#include "client/process/process.h"
#include "client/process/records.h"
#include "client/session/progress.h"
#include "client/session/session.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

// Copies of at most this size between two servers are one download and one upload.
constexpr uint64_t kRelayPiece = uint64_t{8} << 20;

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

// The bytes of a dense remote tensor into one of another server with the same sizes and strides.
// They pass through this process in pieces: later ones are read while earlier ones are sent, and no
// more than kRelayPieces of them are here at a time. Returns when the last piece is on its way.
//
// If it raises (a server is lost, the value was never made, Ctrl-C), the destination may be filled
// in part.
void relay(const at::Tensor& destination, const at::Tensor& source) {
  check_exists(destination);
  Relay(destination, source).run();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes().equals(b.sizes()) && a.strides().equals(b.strides()) &&
         a.is_non_overlapping_and_dense();
}

// `destination.copy_(source)` as one call.
void copy_on_server(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  static const auto operation = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{destination, source, non_blocking};
  dispatch(operation, &stack);
}

// A copy to a server from elsewhere, by a function that moves the bytes of a dense tensor to one of
// the same sizes and strides. As with CUDA, the source's side converts before that.
template <typename Move>
void copy_from_elsewhere(const at::Tensor& destination, const at::Tensor& source, bool non_blocking,
                         Move&& move) {
  at::Tensor ready = source.scalar_type() == destination.scalar_type()
                         ? source
                         : source.to(destination.scalar_type());
  ready = ready.resolve_conj().resolve_neg();
  const bool plain = !destination.is_conj() && !destination.is_neg();
  if (plain && same_layout(destination, ready))
    return move(destination, ready, non_blocking);
  ready = ready.contiguous();
  if (plain && destination.is_contiguous() && destination.sizes().equals(ready.sizes()))
    return move(destination, ready, non_blocking);
  const at::Tensor staged = at::empty(ready.sizes(), destination.options());
  move(staged, ready, non_blocking && ready.is_same(source));
  copy_on_server(destination, staged, non_blocking);
}

void copy_from_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  finish_downloads_to(source);
  copy_from_elsewhere(destination, source, non_blocking, upload);
}

void copy_between_servers(const at::Tensor& destination, const at::Tensor& source) {
  if (source.nbytes() <= kRelayPiece && !may_copy_directly(destination, source))
    return copy_from_host(destination, download(source), false);
  const auto move = [](const at::Tensor& to, const at::Tensor& from, bool) {
    if (!copy_directly(to, from))
      relay(to, from);
  };
  copy_from_elsewhere(destination, source, false, move);
}

// The dimensions of a dense tensor, the largest stride first.
c10::DimVector memory_order(const at::Tensor& tensor) {
  c10::DimVector order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

// True if bytes can be received straight into the destination: no conversion and no scattering.
bool takes_bytes_of(const at::Tensor& destination, const at::Tensor& source) {
  return destination.scalar_type() == source.scalar_type() && !destination.is_conj() &&
         !destination.is_neg() && destination.layout() == at::kStrided &&
         !destination.key_set().has(c10::DispatchKey::Python) &&
         destination.is_non_overlapping_and_dense();
}

// CUDA's rule: only a copy to pinned memory that needs no conversion and no scattering may be
// pending. CUDA waits for all other copies to the host.
bool may_be_pending(const at::Tensor& destination, const at::Tensor& source) {
  return takes_bytes_of(destination, source) && is_pinned(destination.mutable_data_ptr()) &&
         !is_blocking();
}

// A READ returns elements in logical order; the view gets the destination's memory order.
at::Tensor in_memory_order_of(const at::Tensor& destination, const at::Tensor& source) {
  return source.expand(destination.sizes()).permute(memory_order(destination));
}

void download_later(const at::Tensor& destination, const at::Tensor& source) {
  const at::Tensor view = in_memory_order_of(destination, source);
  session_of(*record_of(view))->begin_call({nullptr, record_of(view)->name});
  keep_pending(start_download(view, memory_of(destination), nullptr), destination.storage());
}

void download_into(const at::Tensor& destination, const at::Tensor& source) {
  destination.mutable_data_ptr();  // a lazy clone gets memory of its own
  const std::span<std::byte> memory = memory_of(destination);
  want_huge_pages(memory);
  const at::Tensor view = in_memory_order_of(destination, source);
  const StorageRecord& record = *record_of(view);
  session_of(record)->raise_own_failure({nullptr, record.name});
  const Download download = start_download(view, memory, nullptr);
  try {
    download.session->wait(download.request, "a value");
  } catch (...) {
    // An interrupt: bytes that come later must not change a tensor that the user has again.
    if (!download.session->requests().abandon(*download.request))
      keep_pending(download, destination.storage());
    throw;
  }
}

void copy_to_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  finish_downloads_to(destination);
  if (non_blocking && may_be_pending(destination, source))
    return download_later(destination, source);
  const bool is_planned = Prefetch::active() != nullptr;
  if (!is_planned && destination.sizes().equals(source.sizes()) &&
      takes_bytes_of(destination, source))
    return download_into(destination, source);
  // As with CUDA, the host converts and scatters.
  destination.copy_(download(source));
}

}  // namespace

at::Tensor download(const at::Tensor& tensor) {
  if (tensor.numel() == 0)
    return empty_for(tensor);
  if (Prefetch* const plan = Prefetch::active()) {
    if (auto planned = plan->take(tensor))
      return *std::move(planned);
  }
  const at::Tensor result = empty_for(tensor);
  const StorageRecord& record = *record_of(tensor);
  session_of(record)->raise_own_failure({nullptr, record.name});
  const Download download =
      start_download(tensor, memory_of(result), std::make_shared<at::Tensor>(result));
  download.session->wait(download.request, "a value");
  return result;
}

void copy_tensor(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const bool to_remote = destination.device().is_privateuseone();
  const bool from_remote = source.device().is_privateuseone();
  if (destination.numel() == 0)
    return;
  if (to_remote && from_remote) {
    if (session_of(*record_of(destination)) == session_of(*record_of(source)))
      return copy_on_server(destination, source, non_blocking);
    return copy_between_servers(destination, source);
  }
  if (to_remote)
    return copy_from_host(destination, source.is_cpu() ? source : source.cpu(), non_blocking);
  if (destination.is_cpu())
    return copy_to_host(destination, source, non_blocking);
  destination.copy_(download(source));
}

void copy_addresses(void* destination, const void* source, size_t count) {
  auto tensor_at = [count](const void* address) {
    auto* record = RecordPool::instance().find(reinterpret_cast<uint64_t>(address));
    const c10::Device device =
        record == nullptr
            ? c10::Device(c10::kCPU)
            : c10::Device(c10::kPrivateUse1, Machines::instance().index_of(session_of(*record),
                                                                           record->server_device));
    return at::from_blob(const_cast<void*>(address), {static_cast<int64_t>(count)},
                         at::TensorOptions().dtype(at::kByte).device(device));
  };
  tensor_at(destination).copy_(tensor_at(source));
}

}  // namespace torch_remote::client
