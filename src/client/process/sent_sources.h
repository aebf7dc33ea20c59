#pragma once

#include <memory>
#include <vector>

#include <c10/core/Storage.h>

#include "base/mutex.h"

namespace torch_remote::client {

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
