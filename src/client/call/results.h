#pragma once

#include "client/call/outputs.h"
#include "client/operators/operator.h"

namespace torch_remote::client {

// How many names a queried call may need, at least one. Names that it does not use are lost; there
// are enough.
uint64_t names_for(const OperatorInfo& info, const Capture& capture);

// A queried call that the server has answered.
struct AnsweredCall {
  const OperatorInfo& info;
  const Signature& signature;
  const Capture& capture;
  c10::ArrayRef<c10::IValue> arguments;
  c10::Device device;
  DevicePlace place;
  uint64_t first_name;  // of its fresh outputs
};

// Makes the results, and changes the arguments that the call has resized or rewritten. Unless the
// operator depends on data, the signature learns its outputs, so that its next call need not ask.
Results take_results(const AnsweredCall& call, const std::vector<wire::Result>& results);

}  // namespace torch_remote::client
