// Any bytes as each block of the handshake: what a peer can send before it is authenticated.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "wire/handshake.h"

namespace {

using namespace torch_remote::wire;  // NOLINT

void decode(uint8_t kind, std::span<const std::byte> bytes) {
  switch (kind % 4) {
    case 0:
      if (bytes.size() >= kPreambleBytes) {
        const Preamble preamble = decode_preamble(bytes.first<kPreambleBytes>());
        agree(preamble.min, preamble.max);
      }
      return;
    case 1:
      decode_hello(bytes);
      return;
    case 2:
      decode_proof(bytes);
      return;
    default:
      decode_welcome(bytes);
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    decode(data[0], bytes.subspan(1));
  } catch (const torch_remote::ProtocolError&) {
    // Refused.
  }
  return 0;
}
