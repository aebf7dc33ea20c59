#pragma once

#include "client/call/result_bounds.h"

namespace torch_remote::client {

// How many names a queried call may need, at least one. Names that it does not use are lost; there
// are enough.
uint64_t names_for(const OperatorInfo& info, const Capture& capture);

// Makes the results, and changes the arguments that the call has resized or rewritten. Unless the
// operator depends on data, the signature learns its outputs, so that its next call need not ask.
// Throws ProtocolError: Note [Results that a server tells] in result_bounds.h.
Results take_results(const AnsweredCall& call, const std::vector<wire::Result>& results);

}  // namespace torch_remote::client
