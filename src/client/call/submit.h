#pragma once

#include <ATen/core/Tensor.h>

#include "client/capture/capture.h"
#include "client/machines/machines.h"
#include "client/operators/operator.h"
#include "client/session/session.h"
#include "client/session/signature_table.h"
#include "client/shapes/infer.h"

namespace torch_remote::client {

// Once a signature's outputs are known: computes the bytes of each fresh one.
void finish_signature(Signature& signature);

// For a signature with a `match`: raises NotImplementedError unless each argument that the server's
// operator lacks has its default. At every call, since numbers are not part of a signature.
void check_match(const Signature& signature, c10::ArrayRef<c10::IValue> arguments,
                 Session& session);

// A tensor over a storage that is already named.
at::Tensor tensor_on(StorageRecord* record, const wire::TensorSpec& spec, uint64_t nbytes,
                     c10::Device device);

using Results = c10::SmallVector<c10::IValue, 4>;

// Makes the output tensors that a signature predicts, on `device`, with new storages.
class Outputs {
 public:
  Outputs(const Signature& signature, const Capture& capture, c10::Device device,
          DevicePlace place);

  // Appends the names of the fresh storages, in order, and marks them as made by `call`.
  void encode_names(wire::Writer& writer, wire::NameState& names, uint64_t call,
                    uint64_t thread) const;

  Results& results() { return results_; }

 private:
  c10::IValue make(const wire::Output& output, const Signature& signature, const Capture& capture);
  at::Tensor make_tensor(const wire::TensorSpec& spec, uint64_t nbytes);

  const c10::Device device_;
  const DevicePlace place_;
  size_t next_bytes_ = 0;
  c10::SmallVector<StorageRecord*, 4> fresh_;
  Results results_;
};

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
