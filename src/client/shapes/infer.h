#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "client/operators/operator.h"
#include "wire/signature.h"

namespace torch_remote::client {

enum class Inferred {
  kKnown,    // `outputs` is filled in
  kUnknown,  // only the server can tell
  kResized,  // an `out=` tensor was resized to fit: capture the call again
};

struct Inference {
  Inferred result = Inferred::kUnknown;
  std::vector<wire::Output> outputs;
  InferenceSource by = InferenceSource::kServer;  // who told them
};

// The metadata of a call's outputs, from the first of OperatorInfo::sources that answers. Errors of
// PyTorch's C++ shape code are those of the local call, so they reach the user. An error of a Meta
// kernel in Python may have another text, so the answer is unknown and the server runs the call.
//
// `mentioned` are the tensors of the call, in the order of the key.
Inference infer(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<const at::TensorImpl*> mentioned);

}  // namespace torch_remote::client
