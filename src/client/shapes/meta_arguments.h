#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "marshal/pointer_index.h"

namespace torch_remote::client {

// The call's arguments on the meta device. Each tensor has one meta tensor, so that a returned
// argument is recognised, and each storage one meta storage, so that overlaps are refused.
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
  // By number, in order of appearance.
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
