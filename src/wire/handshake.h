#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/codec.h"
#include "wire/version.h"

namespace torch_remote::wire {

// How a connection begins. Before the session is authenticated a peer can send a preamble, a HELLO and a
// PROOF, kMaxHandshakeBytes in all.
//
//   client  preamble                         32 bytes, plain, read by the listener
//           HELLO      block                 block := length:u32 body
//   server  HELLO      block                 with its proof, when there is a token
//   client  PROOF      block                 messages frames may follow at once
//   server  WELCOME    block                 then messages frames
//
// Both sides prove that they know the token, and neither sends it: HMAC-SHA256(token, side ∥ both HELLO
// bodies without the proof). The server proves first, so that a process squatting on the port learns
// nothing from the client.
//
//   preamble := magic:8 min:u16 max:u16 intent:u8 zero:3 route:u64 zero:8
struct Preamble {
  Version min = kMinVersion;
  Version max = kMaxVersion;
  uint8_t intent = 0;  // 0 new session, 1 resume (comes later: refused)
  uint64_t route = 0;  // which session, for resume
};

constexpr size_t kPreambleBytes = 32;
std::array<std::byte, kPreambleBytes> encode_preamble(const Preamble& preamble);
Preamble decode_preamble(std::span<const std::byte, kPreambleBytes> bytes);

// The highest version both have. Throws ProtocolError that names both ranges.
Version agree(Version peer_min, Version peer_max);

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

//   hello-body := tag:u8 min:u16 max:u16 nonce:32 torch:text capabilities:varint has_proof:u8 [proof:32]
struct Hello {
  Version min = kMinVersion;
  Version max = kMaxVersion;
  Nonce nonce{};
  std::string torch_version;
  uint64_t capabilities = 0;
  bool has_proof = false;  // the server's HELLO only
  Proof proof{};
};

void encode(Writer& writer, const Hello& hello);
Hello decode_hello(std::span<const std::byte> body);

//   proof-body := tag:u8 has_proof:u8 [proof:32]
struct ProofMessage {
  bool has_proof = false;
  Proof proof{};
};

void encode(Writer& writer, const ProofMessage& message);
ProofMessage decode_proof(std::span<const std::byte> body);

enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

struct DeviceProperties {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;
  uint64_t total_memory = 0;
  uint32_t major = 0;  // compute capability
  uint32_t minor = 0;
  uint32_t multi_processors = 0;
};

// What the client needs to know of the server, so that no later round trip asks for it.
//
//   welcome-body := tag:u8 ok:u8 (reason:text | version:u16 session:text host:text pid:varint torch:text
//                   mkldnn:u8 mkldnn_bf16:u8 mkldnn_fp16:u8 cudnn:varint operators:32 n:varint device*n)
struct Welcome {
  bool ok = true;
  std::string reason;  // when not ok
  Version version = kMaxVersion;
  std::string session;
  std::string host;
  uint64_t pid = 0;
  std::string torch_version;
  bool mkldnn = false;
  bool mkldnn_bf16 = false;
  bool mkldnn_fp16 = false;
  uint64_t cudnn = 0;                     // its version, 0: none
  std::array<std::byte, 32> operators{};  // SHA-256 of the sorted operator schemas
  std::vector<DeviceProperties> devices;
};

void encode(Writer& writer, const Welcome& welcome);
Welcome decode_welcome(std::span<const std::byte> body);

enum class Side : uint8_t { kClient = 1, kServer = 2 };

// `hello_client` and `hello_server` are the bodies as sent, the server's without its proof.
Proof make_proof(std::string_view token, Side side, std::span<const std::byte> hello_client,
                 std::span<const std::byte> hello_server);
bool equal_proofs(const Proof& a, const Proof& b);  // constant time

std::array<std::byte, 32> sha256(std::span<const std::byte> bytes);

}  // namespace torch_remote::wire
