#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "marshal/pointer_index.h"
#include "server/executor/storage_table.h"
#include "wire/messages.h"
#include "wire/signature.h"

namespace torch_remote::server {

// Note [Predictions are checked]
//
// The client has already told the user the sizes, strides and dtype of a call's results, and that
// fresh outputs share no memory. PyTorch's Meta kernels, which it asks, are sometimes wrong. If the
// strides differ, or the storage is shared or has an offset, the values are copied into the
// predicted layout, and this is counted and logged. With another size or dtype the call fails
// (Refused).
struct Matched {
  at::Tensor tensor;       // ready for StorageTable::adopt
  std::string difference;  // what was mispredicted; empty if nothing was
};

// `device`: where the call's outputs belong, Note [Outputs on another device].
Matched match_output(at::Tensor actual, const wire::TensorSpec& predicted, c10::Device device);

// For an output that was not predicted: copies it to a storage of its own on `device` if needed.
at::Tensor own_output(at::Tensor actual, c10::Device device);

// The new shape that a call gave to its n-th tensor.
wire::Result resized_result(uint64_t number, const at::Tensor& tensor);

// The tensors of a call, by which a result that is one of them is recognised.
struct Mentioned {
  const std::vector<const c10::TensorImpl*>& impls;
  c10::ArrayRef<at::Tensor> tensors;  // the same; undefined where moved to the stack
  c10::ArrayRef<at::Tensor> sparse;
  c10::Device device;  // where its fresh outputs belong
};

// A sparse tensor that an operator returned or has written. `arguments` are the tensors of the
// call; parts that are not among them are appended to `fresh`.
wire::Result describe_sparse(at::Tensor sparse, c10::ArrayRef<at::Tensor> arguments,
                             c10::Device device, std::vector<at::Tensor>& fresh);

// What an operator returned, for the reply to a queried call. Tensors that are not mentioned
// (looked up by `index`) are appended to `fresh`. Throws Refused for types that cannot be sent.
wire::Result describe_result(c10::IValue value, const Mentioned& mentioned,
                             marshal::PointerIndex& index, std::vector<at::Tensor>& fresh);

}  // namespace torch_remote::server
