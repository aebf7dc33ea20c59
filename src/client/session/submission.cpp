#include "client/session/submission.h"

#include "client/operators/operator.h"

namespace torch_remote::client {

bool Submission::announce(StorageRecord& record, CallSite site) {
  if (record.announced.exchange(true, std::memory_order_relaxed))
    return false;
  site.operation = kResizeSite;
  if (are_streams_used())
    messages_.use_stream(record.server_device, record.stream);  // it gets its memory on this stream
  messages_.number(site);
  encode(messages_.writer, wire::Resize{record.name, record.server_device,
                                        record.nbytes.load(std::memory_order_relaxed)});
  return true;
}

void Submission::announce(Signature& signature, std::span<const uint32_t> defaults) {
  SignatureTable& table = messages_.signatures;
  const OperatorInfo& info = *signature.operation;
  if (table.wire_operators.size() <= info.id)
    table.wire_operators.resize(info.id + 1, 0);
  uint32_t& known = table.wire_operators[info.id];
  wire::SignatureParts parts;
  parts.index = signature.index;
  parts.introduction = known == 0 ? &info.introduction : nullptr;
  if (known == 0)
    known = ++table.operators_introduced;
  parts.operator_id = known - 1;
  parts.defaults = defaults;
  parts.key = signature.key;
  parts.outputs_known = signature.outputs_known;
  parts.outputs = signature.outputs;
  const size_t before = messages_.writer.size();
  wire::encode_signature(messages_.writer, parts);
  for (const uint32_t index :
       table.count_announced(signature.index, messages_.writer.size() - before))
    wire::encode_empty_signature(messages_.writer, index, parts.operator_id,
                                 info.introduction.arguments.size());
  signature.announced = true;
  ++order_.counters().signatures_sent;
}

}  // namespace torch_remote::client
