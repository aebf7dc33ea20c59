#pragma once

#include <ATen/core/Tensor.h>

namespace torch_remote::server {

// Tensors that are passed to an engine of collectives. The engine's threads are in no inference
// mode and may not write the tensors of a session: these are other tensors, mostly over the same
// memory.

at::Tensor new_flat(int64_t numel, const at::Tensor& like);
// The elements one after another; a copy if they do not lie so.
at::Tensor flat_input(const at::Tensor& tensor);
// The elements of all, one tensor after another: a copy.
at::Tensor joined(at::TensorList tensors);
// Copies the parts of `flat`, one after another, into the tensors.
void spread(const at::Tensor& flat, at::TensorList tensors);

// A tensor that an engine writes: itself if its elements lie one after another, else a buffer, from
// which finish() copies them.
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
