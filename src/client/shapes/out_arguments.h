#pragma once

#include <vector>

#include "client/capture/capture.h"
#include "client/operators/operator.h"
#include "wire/messages.h"

// `metas` are the meta tensors of the `out=` tensors, after shape code has run on them.
namespace torch_remote::client {

// Gives `out=` tensors the sizes of their meta tensors. True if one changed.
bool resize_outs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                 const std::vector<at::Tensor>& metas);

// Whether an `out=` that has to be resized is also an input: only the kernel knows if it refuses.
bool resizes_inputs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                    const std::vector<at::Tensor>& metas);

// Whether the kernel might refuse an `out=` for its dtype or for overlaps: Meta checks neither.
bool is_doubtful(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

// Whether an `out=` has no elements: Meta kernels may give it other strides than the kernel does.
bool has_empty_out(const std::vector<at::Tensor>& outs);

// The server's kernel has resized tensors that the call writes, and warned of it. Resizes ours.
// Raises a ProtocolError, before anything has changed, for what no kernel does.
void follow_resizes(const OperatorInfo& info, const Capture& capture,
                    c10::ArrayRef<c10::IValue> arguments, const std::vector<wire::Result>& resized);

}  // namespace torch_remote::client
