#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "client/session.h"

namespace torch_remote::client {

// A READ that was sent.
struct Download {
  Session* session = nullptr;
  std::shared_ptr<Request> request;
  uint64_t call = 0;  // the session's last call before it
};

// Asks for the elements of a remote tensor (contiguous, conj and neg resolved) and returns at once.
// They are written to `into`, which `owner`, or else the caller, keeps until they are there.
Download start_download(const at::Tensor& tensor, std::span<std::byte> into,
                        std::shared_ptr<const void> owner);

// The memory that the elements of a CPU tensor lie in.
std::span<std::byte> memory_of(const at::Tensor& tensor);

// Downloads that no thread waits for yet: copies to pinned memory with non_blocking=True.
// Thread-safe.
//
// They keep their destinations. The request does not, because the reader thread may be the last to
// drop that, and a storage that Python knows takes the GIL when it is dropped.
class PendingDownloads {
 public:
  static PendingDownloads& instance();  // leaks: requests may outlive everything

  // Where there are very many it waits for an older one.
  void add(const Download& download, const c10::Storage& destination);
  // Waits for those that write to this CPU tensor's memory, so that copies to and from it keep their
  // order. What failed is left for Session::synchronize() to raise.
  void finish(const at::Tensor& tensor);
  // Those of a session, oldest first; those that have failed are among them until forget_cause().
  std::vector<std::shared_ptr<Request>> of(const Session& session);
  // Of those that have failed, `told` and all others of the same cause have been raised.
  void forget_cause(const Session& session, uint64_t cause, const Request* told);
  // The session has ended and its reader has too.
  void forget(const Session& session);

 private:
  struct Entry {
    Session* session;
    std::shared_ptr<Request> request;
    c10::Storage destination;
  };

  // Takes out what `is_over(entry)` says; the caller drops it without the lock.
  template <typename Predicate>
  std::vector<Entry> take_if(Predicate&& is_over);
  std::vector<Entry> writers_to(std::span<const std::byte> memory);

  std::atomic<size_t> size_{0};
  Mutex mutex_;
  std::deque<Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
