#include "wire/operators.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "wire/handshake.h"
#include "wire/limits.h"

namespace torch_remote::wire {

Digest operators_digest(std::vector<std::string> schemas) {
  std::sort(schemas.begin(), schemas.end());
  Writer writer;
  for (const std::string& schema : schemas)
    writer.text(schema);
  return sha256(writer.view());
}

uint64_t schema_fingerprint(std::string_view schema) {
  const Digest digest = sha256(std::as_bytes(std::span(schema)));
  uint64_t fingerprint = 0;
  std::memcpy(&fingerprint, digest.data(), sizeof(fingerprint));
  return fingerprint;
}

std::string_view operator_of(std::string_view schema) {
  return schema.substr(0, schema.find('('));
}

void encode_fingerprints(Writer& writer, std::span<const uint64_t> fingerprints) {
  for (const uint64_t fingerprint : fingerprints)
    writer.u64(fingerprint);
}

std::vector<uint64_t> decode_fingerprints(Reader& reader) {
  check_limit("bytes of a reply", reader.rest().size(), kMaxReplyBytes);
  std::vector<uint64_t> fingerprints;
  fingerprints.reserve(reader.rest().size() / sizeof(uint64_t));
  while (!reader.empty())
    fingerprints.push_back(reader.u64());
  return fingerprints;
}

void encode(Writer& writer, const OperatorQuery& query) {
  writer.text(query.name);
  writer.text(query.overload);
}

OperatorQuery decode_operator_query(Reader& reader) {
  OperatorQuery query;
  query.name = reader.text(kMaxText, "operator name");
  query.overload = reader.text(kMaxText, "overload name");
  return query;
}

void encode(Writer& writer, const OperatorAnswer& answer) {
  writer.u8(answer.is_known ? 1 : 0);
  if (!answer.is_known)
    return writer.text(cut_text(answer.reason, kMaxErrorText));
  writer.varint(answer.arguments.size());
  for (const std::string& name : answer.arguments)
    writer.text(name);
}

OperatorAnswer decode_operator_answer(Reader& reader) {
  OperatorAnswer answer;
  const uint8_t is_known = reader.u8();
  if (is_known > 1)
    throw ProtocolError("an operator answer begins with neither 0 nor 1");
  answer.is_known = is_known == 1;
  if (!answer.is_known) {
    answer.reason = reader.readable_text(kMaxErrorText, "reason");
    return answer;
  }
  const uint64_t count = reader.count(kMaxArguments, "arguments");
  for (uint64_t i = 0; i < count; ++i)
    answer.arguments.emplace_back(reader.text(kMaxText, "argument name"));
  return answer;
}

}  // namespace torch_remote::wire
