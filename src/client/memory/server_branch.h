#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include "client/machines/machines.h"
#include "client/memory/storage.h"
#include "client/session/session.h"

// Which server a tensor's calls go to, for kernels that take the branch of the server's device.
//
// Note [Wrapped tensors]
//
// Kernels at AutogradPrivateUse1 also get tensors that only stand for remote ones: functorch's
// wrappers (torch.func.grad, jvp), fake and functional tensors (torch.compile, torch.export),
// subclasses with __torch_dispatch__. They have our device but no storage of ours, and their sizes
// may be symbolic. So such a kernel uses place_of() to find the server and sym_size() for sizes,
// and leaves all work to operators that it calls through the dispatcher.
namespace torch_remote::client {

// The session and server device of a tensor; for a wrapped tensor, those of its device index.
inline DevicePlace place_of(const at::Tensor& tensor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (const StorageRecord* record = own_record(impl))
    return {session_of(*record), record->server_device};
  const c10::Device device = tensor.device();
  return Machines::instance().place(device.has_index() ? device.index() : c10::DeviceIndex{0});
}

inline const wire::Welcome& server_of(const at::Tensor& tensor) {
  return place_of(tensor).session->welcome();
}

// Whether the tensor's server computes on a CPU. May wait for the handshake, once.
inline bool is_on_cpu_server(const at::Tensor& tensor) {
  const DevicePlace place = place_of(tensor);
  return device_kind(*place.session, place.device) == wire::DeviceKind::kCpu;
}

inline bool is_on_cuda_server(const at::Tensor& tensor) {
  return tensor.device().is_privateuseone() && !is_on_cpu_server(tensor);
}

// PyTorch's cudnn_is_acceptable, for the server's device.
inline bool accepts_cudnn(const at::Tensor& tensor) {
  return at::globalContext().userEnabledCuDNN() && is_on_cuda_server(tensor) &&
         server_of(tensor).cudnn != 0 && tensor.sym_numel() != 0;
}

}  // namespace torch_remote::client
