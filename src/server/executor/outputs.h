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
// The client has already told the user sizes, strides and dtype of what a call returns, and that
// fresh outputs share memory with nothing. Meta kernels, on which it relied, are sometimes wrong.
// Other strides, a shared storage or an offset: the values are copied into the layout that was
// predicted; counted and logged. Another size or dtype cannot be mended: Refused, and the call
// fails.
struct Matched {
  at::Tensor tensor;       // fit for StorageTable::adopt
  std::string difference;  // what was mispredicted; empty when nothing was
};

Matched match_output(at::Tensor actual, const wire::TensorSpec& predicted);

// An output nobody predicted, in a storage of its own.
at::Tensor own_output(at::Tensor actual);

// The shape that a call gave to its n-th tensor.
wire::Result resized_result(uint64_t number, const at::Tensor& tensor);

// What an operator returned, as a reply to a queried call says it. Tensors that are not among
// `arguments`, whose index is `index`, are appended to `fresh`. Throws Refused for what does not travel.
wire::Result describe_result(c10::IValue value,
                             const std::vector<const c10::TensorImpl*>& arguments,
                             marshal::PointerIndex& index, std::vector<at::Tensor>& fresh);

}  // namespace torch_remote::server
