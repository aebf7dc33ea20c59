#pragma once

#include <ATen/core/Tensor.h>

#include "client/kernels/composite.h"

namespace torch_remote::client::kernels {

enum class CudnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };  // cuDNN's numbers

// A whole recurrent network, as cuDNN takes it. `cx` is defined for LSTM only.
struct CudnnRecurrent {
  CudnnMode mode;
  at::Tensor hx, cx;
  at::TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
};

// Whether PyTorch would use cuDNN on the server's device.
bool uses_cudnn_rnn(const at::Tensor& input);

// One call. Returns output, hy, cy.
Three cudnn_rnn(const CudnnRecurrent& network, const at::Tensor& input, bool batch_first);
Three cudnn_rnn(const CudnnRecurrent& network, const at::Tensor& data,
                const at::Tensor& batch_sizes);

}  // namespace torch_remote::client::kernels
