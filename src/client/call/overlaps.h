#pragma once

#include "client/operators/operator.h"

// Memory that a call writes twice, or that is another argument's too. What PyTorch's shape code says of it is said at the
// call; the rest only a kernel refuses, and so the client waits for the outcome of a call that a kernel might refuse.
namespace torch_remote::client {

// What a call's signature tells of the tensors that it writes.
struct Overlaps {
  // One overlaps itself, or is another argument too where nothing here knows that the kernel can do that.
  bool may_be_refused = false;
  // One shares its storage with another argument: where they lie in it, each call tells.
  bool shares_storage = false;
};

Overlaps find_overlaps(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

// Whether a tensor that this call writes overlaps another argument in part.
bool overlaps_in_part(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_remote::client
