#include "client/memory/pending_read.h"

#include <ATen/ops/from_blob.h>

#include "client/process/records.h"
#include "client/session/session.h"

namespace torch_remote::client {

PendingRead::PendingRead(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(own_record(*tensor.unsafeGetTensorImpl()) != nullptr,
                              "torch_remote.read(): this tensor wraps another one, as inside "
                              "torch.vmap or torch.compile, and has no value of its own; read "
                              "what the transformed function returns");
  memory_ = empty_for(tensor);
  if (tensor.numel() == 0)
    return;
  download_ = start_download(tensor, memory_of(memory_), std::make_shared<at::Tensor>(memory_));
}

bool PendingRead::is_done() const {
  return download_.request == nullptr || download_.request->done ||
         download_.session->link().is_lost();
}

bool PendingRead::wait_for(std::optional<std::chrono::milliseconds> time) const {
  if (download_.request == nullptr || download_.request->done)
    return true;
  return download_.session->wait_quietly(download_.request, "a value", time);
}

at::Tensor PendingRead::result() const {
  wait_for(std::nullopt);
  if (download_.request != nullptr && download_.request->failed)
    download_.session->raise_failed(*download_.request);
  return at::from_blob(
      memory_.mutable_data_ptr(), memory_.sizes(), [memory = memory_](void*) {}, memory_.options());
}

void PendingRead::signal_when_done(const std::shared_ptr<DoneSignal>& signal) const {
  if (download_.request == nullptr)
    return signal->set();
  download_.session->requests().signal_when_done(*download_.request, signal);
  if (download_.session->link().is_lost())  // signal_all() may have come before
    signal->set();
}

}  // namespace torch_remote::client
