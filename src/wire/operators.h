#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/codec.h"
#include "wire/sha256.h"

namespace torch_remote::wire {

// How client and server compare their operators. Each is its schema as PyTorch prints it:
//
//   aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
//
// WELCOME has the digest of the server's `aten` operators. The client asks only if its own differs.

// SHA-256 over the sorted schemas, each as text.
Digest operators_digest(std::vector<std::string> schemas);

// The first eight bytes of the SHA-256 of one schema.
uint64_t schema_fingerprint(std::string_view schema);

std::string_view operator_of(std::string_view schema);

// The body of a REPLY to QUERY kOperators: fingerprint:u64 for each operator that clients may call.
void encode_fingerprints(Writer& writer, std::span<const uint64_t> fingerprints);
std::vector<uint64_t> decode_fingerprints(Reader& reader);

// The body of QUERY kOperator: name:text overload:text
struct OperatorQuery {
  std::string name;
  std::string overload;
};

void encode(Writer& writer, const OperatorQuery& query);
OperatorQuery decode_operator_query(Reader& reader);

// The body of its REPLY: 0:u8 reason:text | 1:u8 n:varint argument-name:text*n
struct OperatorAnswer {
  bool is_known = false;
  std::string reason;                  // why it cannot be called
  std::vector<std::string> arguments;  // the server's argument names
};

void encode(Writer& writer, const OperatorAnswer& answer);
OperatorAnswer decode_operator_answer(Reader& reader);

}  // namespace torch_remote::wire
