#pragma once

#include "client/call/outputs.h"
#include "client/operators/operator.h"
#include "client/session/session.h"

namespace torch_remote::client {

// Sends a call whose outputs are known. False: another thread has announced one of its storages or
// replaced its signature; capture the call again. `outcome`, if not null, gets how the call went.
bool send_call(Session& session, SignaturePtr& signature, const Capture& capture, Outputs& outputs,
               c10::ArrayRef<c10::IValue> arguments, CallSite site, Request* outcome);

// Waits for the outcome of a call that was sent. Raises its error as the local operator would.
void wait_for_outcome(Session& session, const OperatorInfo& info, Signature& signature,
                      const Capture& capture, const std::shared_ptr<Request>& outcome);

// Sends a call and waits for its results. nullopt: capture the call again, as for send_call. Unless
// the operator depends on data, the results' metadata become part of the signature. Raises the
// server's error as the local operator would.
std::optional<Results> query_call(Session& session, const OperatorInfo& info,
                                  SignaturePtr signature, const Capture& capture,
                                  c10::ArrayRef<c10::IValue> arguments, c10::Device device,
                                  DevicePlace place);

}  // namespace torch_remote::client
