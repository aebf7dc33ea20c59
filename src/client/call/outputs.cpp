#include "client/call/outputs.h"

#include "client/memory/storage.h"

namespace torch_remote::client {
namespace {

using wire::Output;
using wire::OutputKind;

void add_output_bytes(Signature& signature, const Output& output) {
  if (output.kind == OutputKind::kFresh)
    signature.output_bytes.push_back(wire::extent_bytes(output.spec));
  for (const Output& item : output.items)
    add_output_bytes(signature, item);
}

}  // namespace

at::Tensor tensor_of(const c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
      const_cast<c10::TensorImpl*>(impl)));
}

void finish_signature(Signature& signature) {
  for (const Output& output : signature.outputs)
    add_output_bytes(signature, output);
}

Outputs::Outputs(const Signature& signature, const Capture& capture, c10::Device device,
                 DevicePlace place)
    : device_(device), place_(place) {
  for (const Output& output : signature.outputs)
    results_.push_back(make(output, signature, capture));
}

at::Tensor Outputs::make_tensor(const wire::TensorSpec& spec, uint64_t nbytes) {
  StorageRecord* record = make_record(*place_.session, place_.device, device_.index(), nbytes, 0,
                                      RecordPool::kToBeWritten);
  fresh_.push_back(record);
  return tensor_on(record, spec, nbytes, device_);
}

c10::IValue Outputs::make(const Output& output, const Signature& signature,
                          const Capture& capture) {
  switch (output.kind) {
    case OutputKind::kUndefined:
      return at::Tensor();
    case OutputKind::kFresh:
      return make_tensor(output.spec, signature.output_bytes[next_bytes_++]);
    case OutputKind::kTensor:
      return tensor_of(capture.impls()[output.tensor]);
    case OutputKind::kInt:
      return output.integer;
    case OutputKind::kList:
      break;
  }
  c10::List<at::Tensor> list;
  list.reserve(output.items.size());
  for (const Output& item : output.items)
    list.push_back(make(item, signature, capture).toTensor());
  return list;
}

void Outputs::encode_names(wire::Writer& writer, wire::NameState& names, uint64_t call,
                           uint64_t thread) const {
  for (StorageRecord* record : fresh_) {
    wire::encode_name(writer, names, record->name);
    record->note_made(call, thread);
  }
}

}  // namespace torch_remote::client
