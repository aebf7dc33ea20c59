#pragma once

#include <atomic>

#include "base/fd.h"

namespace torch_remote::client {

// A descriptor that is readable from set() until clear(), for an event loop that waits for
// requests. Thread-safe; set() never blocks.
//
// The loop calls clear() and then looks which requests are done: one that became done before is
// seen then, one that becomes done later makes the descriptor readable again.
class DoneSignal {
 public:
  DoneSignal();

  int descriptor() const { return ends_.first.get(); }

  void set() noexcept;
  void clear() noexcept;

 private:
  const std::pair<Fd, Fd> ends_;  // a pipe that holds at most one byte
  std::atomic<bool> is_set_ = false;
};

}  // namespace torch_remote::client
