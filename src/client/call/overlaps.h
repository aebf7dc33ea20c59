#pragma once

#include "client/operators/operator.h"

// Memory that a call writes twice, or that another argument shares. PyTorch's shape code refuses
// some of it at the call. The rest only kernels refuse, so the client waits for such calls.
namespace torch_remote::client {

// Fixed for a signature.
struct Overlaps {
  // A written tensor overlaps itself, or is another argument too and the kernel may not allow that.
  bool may_be_refused = false;
  // A written tensor shares its storage with another argument: each call has to compare offsets.
  bool shares_storage = false;
};

Overlaps find_overlaps(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

// Whether a tensor that this call writes overlaps another argument in part.
bool overlaps_in_part(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_remote::client
