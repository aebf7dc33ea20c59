#include "server/groups/engine_tensors.h"

#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace torch_remote::server {
namespace {

using at::Tensor;

Tensor ordinary(const Tensor& tensor) {
  const c10::InferenceMode off(false);
  return at::empty({0}, tensor.options())
      .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

}  // namespace

Tensor new_flat(int64_t numel, const Tensor& like) {
  const c10::InferenceMode off(false);
  return at::empty({numel}, like.options());
}

Tensor flat_input(const Tensor& tensor) {
  return ordinary(tensor.contiguous().view({-1}));
}

Tensor joined(at::TensorList tensors) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors)
    flat.push_back(tensor.reshape({-1}));
  return ordinary(at::cat(flat));
}

void spread(const Tensor& flat, at::TensorList tensors) {
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

Target::Target(const Tensor& tensor)
    : tensor_(tensor), flat_(flat_input(tensor)), is_buffered_(!tensor.is_contiguous()) {}

void Target::finish() {
  if (is_buffered_)
    tensor_.copy_(flat_.view(tensor_.sizes()));
}

}  // namespace torch_remote::server
