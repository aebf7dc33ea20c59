#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Storage.h>

#include "base/mutex.h"
#include "client/session/requests.h"

namespace torch_remote::client {

class Session;

// Downloads that no thread waits for yet: copies to pinned memory with non_blocking=True.
// Thread-safe; waits for nothing.
//
// They keep their destinations. The request does not, because the reader thread may be the last to
// drop that, and a storage that Python knows takes the GIL when it is dropped.
class PendingDownloads {
 public:
  struct Entry {
    Session* session = nullptr;
    RequestPtr request;
    c10::Storage destination;
  };

  static PendingDownloads& instance();  // leaks: requests may outlive everything

  bool is_empty() const { return size_.load() == 0; }

  // Where there are very many it gives an older one, to be waited for.
  std::optional<Entry> add(Entry entry);
  // Forgets those that are done and have not failed.
  void drop_good();
  // Those that write to this memory and are not done.
  std::vector<Entry> writers_to(std::span<const std::byte> memory);
  // Those of a session, oldest first; those that have failed are among them until forget_cause().
  std::vector<RequestPtr> of(const Session& session);
  // Of those that have failed, `told` and all others of the same cause have been raised.
  void forget_cause(const Session& session, uint64_t cause, const Request* told);
  // The session has ended and its reader has too.
  void forget(const Session& session);

 private:
  // Takes out what `is_over(entry)` says; the caller drops it without the lock.
  template <typename Predicate>
  std::vector<Entry> take_if(Predicate&& is_over);

  std::atomic<size_t> size_{0};
  Mutex mutex_;
  std::deque<Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
