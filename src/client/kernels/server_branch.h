#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include "client/session.h"
#include "client/storage.h"

namespace torch_remote::client::kernels {

inline const wire::Welcome& server_of(const at::Tensor& tensor) {
  return session_of(*client::record_of(tensor))->welcome();
}

// Whether the tensor's server computes on a CPU. May wait for the handshake, once.
inline bool is_on_cpu_server(const at::Tensor& tensor) {
  const StorageRecord& record = *client::record_of(tensor);
  return session_of(record)->device_kind(record.server_device) == wire::DeviceKind::kCpu;
}

inline bool is_on_cuda_server(const at::Tensor& tensor) {
  return tensor.device().is_privateuseone() && !is_on_cpu_server(tensor);
}

// PyTorch's cudnn_is_acceptable, asked on the server.
inline bool accepts_cudnn(const at::Tensor& tensor) {
  return at::globalContext().userEnabledCuDNN() && is_on_cuda_server(tensor) &&
         server_of(tensor).cudnn != 0 && tensor.numel() != 0;
}

}  // namespace torch_remote::client::kernels
