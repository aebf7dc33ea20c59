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
    case ResultKind::kSparseTensor:
      writer.varint(result.tensor);
      break;
    case ResultKind::kRewritten:
      writer.varint(result.tensor);
      [[fallthrough]];
    case ResultKind::kSparse:
      encode(writer, result.sparse);
      for (const Result& part : result.items)
        encode_result(writer, part);
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

void decode_fresh(Reader& reader, Result& result) {
  result.spec = decode_spec(reader);
  result.nbytes = reader.count(kMaxStorageBytes, "bytes of a storage");
}

void decode_sparse(Reader& reader, Result& result) {
  result.sparse = decode_sparse_spec(reader);
  for (size_t i = 0; i < part_count(result.sparse.layout); ++i) {
    Result& part = result.items.emplace_back();
    part.kind = static_cast<ResultKind>(reader.u8());
    if (part.kind == ResultKind::kFresh)
      decode_fresh(reader, part);
    else if (part.kind == ResultKind::kTensor)
      part.tensor = reader.varint();
    else
      throw ProtocolError("a part of a sparse result is not a tensor");
  }
}

// A result of one byte takes some hundred in memory, so they are counted: `left` is how many more
// there may be.
Result decode_result(Reader& reader, bool inside_list, uint64_t& left) {
  if (left-- == 0)
    refuse_over_limit("results of a call", kMaxResults + 1, kMaxResults);
  Result result;
  const uint8_t kind = reader.u8();
  if (kind > static_cast<uint8_t>(ResultKind::kRewritten))
    throw ProtocolError("no such result kind");
  result.kind = static_cast<ResultKind>(kind);
  switch (result.kind) {
    case ResultKind::kFresh:
      decode_fresh(reader, result);
      break;
    case ResultKind::kTensor:
    case ResultKind::kSparseTensor:
      result.tensor = reader.varint();
      break;
    case ResultKind::kRewritten:
      result.tensor = reader.varint();
      decode_sparse(reader, result);
      break;
    case ResultKind::kSparse:
      decode_sparse(reader, result);
      break;
    case ResultKind::kResized:
      result.tensor = reader.varint();
      decode_fresh(reader, result);
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
      const uint64_t n = reader.count(kMaxResults, "result list");
      for (uint64_t i = 0; i < n; ++i)
        result.items.push_back(decode_result(reader, true, left));
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
  uint64_t left = kMaxResults;
  std::vector<Result> results;
  for (uint64_t i = 0; i < n; ++i)
    results.push_back(decode_result(reader, false, left));
  return results;
}

uint64_t count_fresh(const std::vector<Result>& results) {
  uint64_t count = 0;
  for (const Result& result : results)
    count += (result.kind == ResultKind::kFresh ? 1 : 0) + count_fresh(result.items);
  return count;
}

}  // namespace torch_remote::wire
