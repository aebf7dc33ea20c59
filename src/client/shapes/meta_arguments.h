#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "marshal/pointer_index.h"

namespace torch_remote::client {

// The call's arguments on the meta device; one meta tensor for each tensor, so that a tensor that comes
// back is known again, and one meta storage for each storage, so that those that overlap are refused.
class MetaArguments {
 public:
  explicit MetaArguments(c10::ArrayRef<c10::IValue> arguments);

  torch::jit::Stack& stack() { return stack_; }

  // The real tensor a meta tensor stands for, or null.
  const at::TensorImpl* real(const at::Tensor& meta);

 private:
  c10::IValue convert(const c10::IValue& value);
  at::Tensor convert_tensor(const at::Tensor& tensor);
  c10::Storage storage_for(const at::Tensor& tensor);

  torch::jit::Stack stack_;
  // By number, in the order in which they are met.
  std::vector<const at::TensorImpl*> reals_;
  std::vector<const at::TensorImpl*> meta_impls_;
  std::vector<at::Tensor> metas_;
  std::vector<const c10::StorageImpl*> real_storages_;
  std::vector<c10::Storage> storages_;
  marshal::PointerIndex real_index_;
  marshal::PointerIndex meta_index_;
  marshal::PointerIndex storage_index_;
};

}  // namespace torch_remote::client
