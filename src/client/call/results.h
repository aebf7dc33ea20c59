#pragma once

#include "client/call/outputs.h"
#include "client/operators/operator.h"

namespace torch_remote::client {

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

// Note [Results that a server tells]
//
// The size of some results only the server knows, and a read of a tensor allocates as much memory
// here as its size says. So what a server tells is compared with what the operator can give: the
// kind of each result, and for operators whose results depend on data the dtype, the dimensions and
// the largest number of elements for these arguments (which rule, the table of operators says:
// ResultBound in marshal/operator_table.h). Where the values of the arguments alone bound the
// result (bincount, repeat_interleave), and for operators without such a rule, a result must fit
// into the memory that the server's device has.

// Throws ProtocolError for results that the operator cannot give.
void check_results(const AnsweredCall& call, const std::vector<wire::Result>& results);

// How many names a queried call may need, at least one. Names that it does not use are lost; there
// are enough.
uint64_t names_for(const OperatorInfo& info, const Capture& capture);

// Makes the results, and changes the arguments that the call has resized or rewritten. Unless the
// operator depends on data, the signature learns its outputs, so that its next call need not ask.
// Throws ProtocolError: Note [Results that a server tells].
Results take_results(const AnsweredCall& call, const std::vector<wire::Result>& results);

}  // namespace torch_remote::client
