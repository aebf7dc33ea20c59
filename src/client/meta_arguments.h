#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace torch_remote::client {

// The call's arguments on the meta device; one meta tensor for each tensor, so that a tensor that comes
// back is known again, and one meta storage for each storage, so that those that overlap are refused.
class MetaArguments {
 public:
  explicit MetaArguments(c10::ArrayRef<c10::IValue> arguments);

  torch::jit::Stack& stack() { return stack_; }

  // The real tensor a meta tensor stands for, or null.
  const at::TensorImpl* real(const at::Tensor& meta) const;

 private:
  c10::IValue convert(const c10::IValue& value);
  at::Tensor convert_tensor(const at::Tensor& tensor);
  c10::Storage storage_for(const at::Tensor& tensor);

  torch::jit::Stack stack_;
  std::vector<std::pair<const at::TensorImpl*, at::Tensor>> pairs_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

}  // namespace torch_remote::client
