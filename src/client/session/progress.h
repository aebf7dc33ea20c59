#pragma once

#include "client/session/requests.h"

namespace torch_remote::client {

// Shows the progress of a large transfer while this thread waits for it.
//
// Python shows it (python/torch_remote/_progress.py); its functions that move many tensors, such as
// torch.load, turn it on for the whole of what they move. Waits only call update(). Confined to its
// thread.
class TransferProgress {
 public:
  // Does nothing unless the request moves kLeastShown bytes and this thread shows nothing yet.
  explicit TransferProgress(const Request& request);
  // For a transfer of so many bytes by several requests.
  TransferProgress(uint64_t bytes, bool is_upload);
  ~TransferProgress();
  TransferProgress(const TransferProgress&) = delete;
  TransferProgress& operator=(const TransferProgress&) = delete;

  // This thread shows a transfer.
  static bool is_shown();
  // For Python. Returns what it was.
  static bool set_shown(bool is_shown);
  // Updates what is shown, at most every 50 ms. With the GIL released.
  static void update();

 private:
  bool is_mine_ = false;
};

}  // namespace torch_remote::client
