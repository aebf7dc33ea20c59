// Any bytes as each block of the handshake, of a new and of a resumed session: all that a peer can
// send before it is authenticated.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "transport/client_hello.h"
#include "wire/handshake.h"

namespace {

using namespace torch_remote::wire;  // NOLINT

void require(bool holds) {
  if (!holds)
    std::abort();
}

void read_preamble(std::span<const std::byte> bytes) {
  if (bytes.size() < kPreambleBytes)
    return;
  const Preamble preamble = decode_preamble(bytes.first<kPreambleBytes>());
  const std::string id = session_id(preamble.route);
  require(session_id(session_route(id)) == id);
  agree(preamble.min, preamble.max);
}

void read_session_id(std::span<const std::byte> bytes) {
  const std::string_view id(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const uint64_t route = session_route(id);
  require(session_route(session_id(route)) == route);
}

// The proof is over the bytes that came, whatever they say.
void read_hello(std::span<const std::byte> bytes) {
  const Hello hello = decode_hello(bytes);
  const Proof proof = make_proof("token", Side::kClient, bytes, bytes);
  require(equal_proofs(proof, proof));
  equal_proofs(proof, hello.proof);
}

// What the listener looks at: once it is whole, more bytes do not change that.
void look_at_first_message(std::span<const std::byte> bytes) {
  const bool is_hello = bytes.size() % 2 == 0;
  const auto holds = is_hello ? &holds_hello : &torch_remote::transport::holds_client_hello;
  bool was_whole = false;
  for (size_t length = 0; length <= bytes.size() && length < 64; ++length) {
    const bool is_whole = holds(bytes.first(length));
    require(is_whole || !was_whole);
    was_whole = is_whole;
  }
  holds(bytes);
}

void decode(uint8_t kind, std::span<const std::byte> bytes) {
  switch (kind % 6) {
    case 0:
      read_preamble(bytes);
      return;
    case 1:
      read_hello(bytes);
      return;
    case 2:
      decode_proof(bytes);
      return;
    case 3:
      decode_welcome(bytes);
      return;
    case 4:
      look_at_first_message(bytes);
      return;
    default:
      read_session_id(bytes);
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
