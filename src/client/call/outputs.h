#pragma once

#include <ATen/core/Tensor.h>

#include "client/capture/capture.h"
#include "client/machines/machines.h"
#include "client/session/signature_table.h"

namespace torch_remote::client {

// Once a signature's outputs are known: computes the bytes of each fresh one.
void finish_signature(Signature& signature);

at::Tensor tensor_of(const c10::TensorImpl* impl);

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

}  // namespace torch_remote::client
