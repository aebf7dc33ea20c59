#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "client/memory/downloads.h"
#include "client/process/done_signal.h"

namespace torch_remote::client {

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
