#pragma once

#include <vector>

#include "client/capture/capture.h"
#include "client/operators/operator.h"
#include "wire/messages.h"

// `out=` tensors, of which `metas` or `outs` are the twins on the meta device after a shape function has run.
namespace torch_remote::client {

// Gives `out=` tensors the size that their twins have come to have. True when one changed.
bool resize_outs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                 const std::vector<at::Tensor>& metas);

// An input that is also the output, of another size: only the kernel knows whether it refuses that, and why.
bool resizes_inputs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                    const std::vector<at::Tensor>& metas);

// Whether the kernel might refuse an `out=` tensor for its dtype or for overlapping, which Meta kernels do not look at.
bool is_doubtful(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

// Meta kernels may give other strides than the kernel does to an `out=` without elements.
bool has_empty_out(const std::vector<at::Tensor>& outs);

// The server's kernel has resized tensors that the call writes: so are ours, with the warning that PyTorch gives for it.
// Raises a ProtocolError, before anything has changed, for what no kernel does.
void follow_resizes(const OperatorInfo& info, const Capture& capture,
                    c10::ArrayRef<c10::IValue> arguments, const std::vector<wire::Result>& resized);

}  // namespace torch_remote::client
