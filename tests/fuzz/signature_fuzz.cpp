// Any bytes as a SIGNATURE: decoded or refused, never anything else; what was decoded stays inside
// its limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "wire/limits.h"
#include "wire/signature.h"

namespace {

void check(const torch_remote::wire::Signature& signature) {
  using namespace torch_remote::wire;  // NOLINT
  if (signature.index >= kMaxSignatures || signature.device >= kMaxDevices)
    std::abort();
  int64_t tensors = 0;
  const auto count = [&](const Value& value) {
    if (value.kind == ValueKind::kAgain && value.integer >= tensors)
      std::abort();
    tensors += value.kind == ValueKind::kTensor;
  };
  for (const Value& value : signature.arguments) {
    count(value);
    for (const Value& item : value.items)
      count(item);
    if (value.kind != ValueKind::kTensor)
      continue;
    if (value.storage >= signature.storages.size())
      std::abort();
    if (value.extent != extent_bytes(value.spec))
      std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using torch_remote::wire::Reader;
  if (size == 0)
    return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    Reader reader(bytes.subspan(1));
    check(torch_remote::wire::decode_signature(reader, data[0]));
  } catch (const torch_remote::ProtocolError&) {
    // Refused.
  }
  return 0;
}
