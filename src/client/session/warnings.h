#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "client/process/errors.h"
#include "client/process/lines.h"
#include "wire/warning.h"

namespace torch_remote::client {

// The warnings of the server's kernels, kept until a thread of the user's program waits. That
// thread may run Python, which shows them; the reader thread may not. Thread-safe.
class Warnings {
 public:
  struct Warning {
    std::shared_ptr<const ShownWarning> shown;
    LineId line = 0;      // that made the call
    uint64_t thread = 0;  // that made it; 0: unknown
  };

  // Reader thread. `site` is that of the call. Throws ProtocolError for a text that was never sent.
  void add(wire::Warning warning, CallSite site);

  bool has_any() const { return has_any_.load(std::memory_order_relaxed); }

  // Removes and returns the oldest of this thread or of one that has ended; of any thread for 0.
  std::optional<Warning> take(uint64_t thread);

 private:
  void note_text(wire::Warning warning);

  // The reader thread's: by number. Null: the client itself warns of it.
  std::vector<std::shared_ptr<const ShownWarning>> texts_;
  std::atomic<bool> has_any_{false};
  Mutex mutex_;
  std::deque<Warning> waiting_ GUARDED_BY(mutex_);
  uint64_t left_out_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torch_remote::client
