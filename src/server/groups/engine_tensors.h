#pragma once

#include <ATen/core/Tensor.h>

namespace torch_remote::server {

// Tensors that are passed to an engine of collectives. The engine's threads are in no inference
// mode and may not write the tensors of a session: these are other tensors, mostly over the same
// memory.

at::Tensor new_flat(int64_t numel, const at::Tensor& like);
// All elements in one dimension, contiguous in memory. Copies the tensor if it is not contiguous.
at::Tensor flat_input(const at::Tensor& tensor);
// A copy of the elements of all tensors, one tensor after another, in one dimension.
at::Tensor joined(at::TensorList tensors);
// Copies the parts of `flat`, one after another, into the tensors.
void spread(const at::Tensor& flat, at::TensorList tensors);

// A tensor that an engine writes. If it is not contiguous, the engine writes a buffer, and finish()
// copies the buffer into the tensor.
class Target {
 public:
  explicit Target(const at::Tensor& tensor);

  at::Tensor& flat() { return flat_; }

  void finish();

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
  bool is_buffered_;
};

}  // namespace torch_remote::server
