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

// Downloads that no thread waits for yet: copies to pinned memory with non_blocking=True. Never
// waits. Thread-safe.
//
// It keeps their destinations. The request does not: the reader thread may be the last to release a
// request, and releasing a storage that Python knows takes the GIL.
class PendingDownloads {
 public:
  struct Entry {
    Session* session = nullptr;
    RequestPtr request;
    c10::Storage destination;
  };

  static PendingDownloads& instance();  // leaks: requests may outlive everything else

  bool is_empty() const { return size_.load() == 0; }

  // If there are very many, returns an older one to wait for.
  std::optional<Entry> add(Entry entry);
  // Forgets those that have succeeded.
  void drop_good();
  // Unfinished ones that write to this memory.
  std::vector<Entry> writers_to(std::span<const std::byte> memory);
  // Those of a session, oldest first, including failed ones until forget_cause().
  std::vector<RequestPtr> of(const Session& session);
  // Forgets failed ones: `told` and all others of the same cause have been raised.
  void forget_cause(const Session& session, uint64_t cause, const Request* told);
  // After the session and its reader thread have ended.
  void forget(const Session& session);

 private:
  // Removes the entries for which `is_over(entry)`; the caller destroys them without the lock.
  template <typename Predicate>
  std::vector<Entry> take_if(Predicate&& is_over);

  std::atomic<size_t> size_{0};
  Mutex mutex_;
  std::deque<Entry> entries_ GUARDED_BY(mutex_);
};

// Keeps the memory of uploads until the server has it. A thread of the connection lets go of it
// then, but must not destroy it: to destroy a storage that Python knows takes the GIL. Threads of
// the user destroy it: when they have waited, and at the next upload. Thread-safe.
class SentSources {
 public:
  static SentSources& instance();  // leaks: the reader thread may live at exit

  // Keeps the storage as long as what it returns lives, and then until free_done().
  std::shared_ptr<const void> keep(const c10::Storage& storage);
  // Destroys those that the server has. The caller holds no lock.
  void free_done();

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<c10::Storage>> done_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
