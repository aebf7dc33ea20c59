#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "client/operators/operator.h"
#include "wire/signature.h"

namespace torch_remote::client {

enum class Inferred {
  kKnown,    // `outputs` is filled in
  kUnknown,  // only the server can tell
  kResized,  // an `out=` tensor was resized to fit: the call has to be looked at again
};

struct Inference {
  Inferred result = Inferred::kUnknown;
  std::vector<wire::Output> outputs;
  Way by = Way::kServer;  // who told them
};

// Metadata of a call's outputs, by the first of OperatorInfo::ways that answers. What the C++ code
// throws is what the local call would throw, so it goes to the user; what a Python kernel throws is
// not taken for granted and makes the answer unknown: the server then says what is wrong in the
// very words of the local kernel.
//
// `mentioned` are the tensors of the call in the order the key mentions them.
Inference infer(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<const at::TensorImpl*> mentioned);

}  // namespace torch_remote::client
