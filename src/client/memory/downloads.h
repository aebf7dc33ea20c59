#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "base/block_pool.h"
#include "client/session/requests.h"

namespace torch_remote::client {

class Session;

// Downloads of at least this size are received into kept memory.
constexpr size_t kSmallestKept = BlockPool::kSmallest;
// Limit for memory of freed downloads that is kept.
constexpr uint64_t kMaxKeptBytes = uint64_t{512} << 20;

// Note [Kept downloads]
//
// The memory of a large CPU tensor that a download has made is kept when the tensor is freed, and
// the next download of about that size is received into it (base/block_pool.h says why). The tensor
// is an ordinary one: its memory is that of PyTorch's allocator, and only its deleter is ours.

// Memory for downloads, and what is kept of it. Thread-safe. Leaks: tensors may outlive it.
class DownloadMemory {
 public:
  static DownloadMemory& instance();

  // Throws what PyTorch's allocator throws.
  c10::DataPtr allocate(size_t nbytes);

  // Frees what is kept: torch.remote.empty_cache().
  void empty();

  uint64_t kept_bytes() const { return pool_.kept_bytes(); }

 private:
  DownloadMemory();

  static void give_back(void* memory);

  BlockPool pool_;
};

// A CPU tensor for a download, whose memory is not filled. Strides must be dense.
at::Tensor empty_for_download(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              at::ScalarType dtype);

struct Download {
  Session* session = nullptr;
  RequestPtr request;
  uint64_t call = 0;  // the session's last call before it
};

// Asks for the elements of a remote tensor (contiguous, conj and neg resolved) and returns at once.
// The bytes are written to `into`, which `owner`, or else the caller, keeps alive until then.
Download start_download(const at::Tensor& tensor, std::span<std::byte> into,
                        std::shared_ptr<const void> owner);

// Leaves a download pending (client/session/pending.h). If there are very many, waits for one.
void keep_pending(const Download& download, const c10::Storage& destination);
// Waits for pending downloads into this CPU tensor's memory, so that copies to and from it keep
// their order. Session::synchronize() raises what failed.
void finish_downloads_to(const at::Tensor& tensor);
// The same for all of the session; and whether they are here.
void finish_downloads(Session& session);
bool are_downloads_here(Session& session);

std::span<std::byte> memory_of(const at::Tensor& tensor);
// A contiguous CPU tensor for the elements of a remote one.
at::Tensor empty_for(const at::Tensor& tensor);

// The value of a remote tensor at one place in the order of calls: torch_remote.read(). The
// constructor asks for it and returns at once. Thread-safe.
class PendingRead {
 public:
  explicit PendingRead(const at::Tensor& tensor);

  // The value has arrived, or never will: result() does not wait.
  bool is_done() const;
  // False: not done within `time`. Raises SessionLost.
  bool wait_for(std::optional<std::chrono::milliseconds> time) const;
  // Waits. Raises the error of the call that was to make the value, each time.
  at::Tensor result() const;
  void signal_when_done(const std::shared_ptr<DoneSignal>& signal) const;

 private:
  // The request keeps `memory_` too, and the reader thread may release it last. So Python gets
  // another tensor over the same bytes: releasing a tensor that Python knows takes the GIL.
  at::Tensor memory_;
  Download download_;  // without a request if there are no elements
};

}  // namespace torch_remote::client
