// The body of a REPLY to QUERY kCall.
#include "base/error.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

void encode_result(Writer& writer, const Result& result) {
  writer.u8(static_cast<uint8_t>(result.kind));
  switch (result.kind) {
    case ResultKind::kFresh:
      encode(writer, result.spec);
      writer.varint(result.nbytes);
      break;
    case ResultKind::kTensor:
      writer.varint(result.tensor);
      break;
    case ResultKind::kResized:
      writer.varint(result.tensor);
      encode(writer, result.spec);
      writer.varint(result.nbytes);
      break;
    case ResultKind::kInt:
    case ResultKind::kBool:
      writer.zigzag(result.integer);
      break;
    case ResultKind::kFloat:
      writer.f64(result.real);
      break;
    case ResultKind::kScalarComplex:
      writer.f64(result.real);
      writer.f64(result.imaginary);
      break;
    case ResultKind::kString:
      writer.text(result.text);
      break;
    case ResultKind::kList:
      writer.varint(result.items.size());
      for (const Result& item : result.items)
        encode_result(writer, item);
      break;
    case ResultKind::kNone:
    case ResultKind::kUndefined:
      break;
  }
}

Result decode_result(Reader& reader, bool inside_list) {
  Result result;
  const uint8_t kind = reader.u8();
  if (kind > static_cast<uint8_t>(ResultKind::kResized))
    throw ProtocolError("no such result kind");
  result.kind = static_cast<ResultKind>(kind);
  switch (result.kind) {
    case ResultKind::kFresh:
      result.spec = decode_spec(reader);
      result.nbytes = reader.count(kMaxStorageBytes, "bytes of a storage");
      break;
    case ResultKind::kTensor:
      result.tensor = reader.varint();
      break;
    case ResultKind::kResized:
      result.tensor = reader.varint();
      result.spec = decode_spec(reader);
      result.nbytes = reader.count(kMaxStorageBytes, "bytes of a storage");
      break;
    case ResultKind::kInt:
    case ResultKind::kBool:
      result.integer = reader.zigzag();
      break;
    case ResultKind::kFloat:
      result.real = reader.f64();
      break;
    case ResultKind::kScalarComplex:
      result.real = reader.f64();
      result.imaginary = reader.f64();
      break;
    case ResultKind::kString:
      result.text = reader.text(kMaxText, "string");
      break;
    case ResultKind::kList: {
      if (inside_list)
        throw ProtocolError("a list inside a list");
      const uint64_t n = reader.count(kMaxListLength, "result list");
      for (uint64_t i = 0; i < n; ++i)
        result.items.push_back(decode_result(reader, true));
      break;
    }
    case ResultKind::kNone:
    case ResultKind::kUndefined:
      break;
  }
  return result;
}

}  // namespace

void encode(Writer& writer, const std::vector<Result>& results) {
  writer.varint(results.size());
  for (const Result& result : results)
    encode_result(writer, result);
}

std::vector<Result> decode_results(Reader& reader) {
  const uint64_t n = reader.count(kMaxArguments, "results");
  std::vector<Result> results;
  for (uint64_t i = 0; i < n; ++i)
    results.push_back(decode_result(reader, false));
  return results;
}

}  // namespace torch_remote::wire
