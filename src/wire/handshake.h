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
// A session that is resumed begins in the same way, with the proofs made by resume_key() instead of the token;
// its WELCOME says only what the server has received.
//
//   preamble := magic:8 min:u16 max:u16 intent:u8 zero:3 route:u64 zero:8
struct Preamble {
  Version min = kMinVersion;
  Version max = kMaxVersion;
  uint8_t intent = 0;  // 0 new session, 1 resume
  uint64_t route = 0;  // which session, for resume: its id
};

constexpr size_t kPreambleBytes = 32;
std::array<std::byte, kPreambleBytes> encode_preamble(const Preamble& preamble);
Preamble decode_preamble(std::span<const std::byte, kPreambleBytes> bytes);

// The highest version both have. Throws ProtocolError that names both ranges.
Version agree(Version peer_min, Version peer_max);

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

//   hello-body := tag:u8 min:u16 max:u16 nonce:32 torch:text capabilities:varint received:varint
//                 machine:32 process:varint has_proof:u8 [proof:32]
struct Hello {
  Version min = kMinVersion;
  Version max = kMaxVersion;
  Nonce nonce{};
  std::string torch_version;
  uint64_t capabilities = 0;
  // The client's HELLO only. A server in the same place as the client ends the session with the client's process.
  uint64_t received = 0;                // highest sequence wholly received, for resume
  std::array<std::byte, 32> machine{};  // where `process` is a name, hashed; zeros: unknown
  uint64_t process = 0;
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

using Secret = std::array<std::byte, 32>;

enum class Answer : uint8_t { kRefused = 0, kNew = 1, kResumed = 2 };

// What the client needs to know of the server, so that no later round trip asks for it.
//
//   welcome-body := tag:u8 0:u8 reason:text
//                 | tag:u8 1:u8 version:u16 session:text secret:32 lease:varint host:text pid:varint torch:text
//                   mkldnn:u8 mkldnn_bf16:u8 mkldnn_fp16:u8 cudnn:varint operators:32 n:varint device*n
//                 | tag:u8 2:u8 received:varint
struct Welcome {
  Answer answer = Answer::kNew;
  std::string reason;     // kRefused
  uint64_t received = 0;  // kResumed: the highest sequence that the server has wholly received
  Version version = kMaxVersion;
  std::string session;  // its id: eight hexadecimal digits
  Secret secret{};      // proves, in a later handshake, that a client is this one
  uint64_t lease = 0;   // milliseconds that the session outlives its connection; 0: it does not
  std::string host;
  uint64_t pid = 0;
  std::string torch_version;
  bool mkldnn = false;
  bool mkldnn_bf16 = false;
  bool mkldnn_fp16 = false;
  uint64_t cudnn = 0;                     // its version, 0: none
  std::array<std::byte, 32> operators{};  // SHA-256 of the sorted operator schemas
  std::vector<DeviceProperties> devices;

  bool ok() const { return answer != Answer::kRefused; }
};

void encode(Writer& writer, const Welcome& welcome);
Welcome decode_welcome(std::span<const std::byte> body);

enum class Side : uint8_t { kClient = 1, kServer = 2 };

// `hello_client` and `hello_server` are the bodies as sent, the server's without its proof.
Proof make_proof(std::string_view token, Side side, std::span<const std::byte> hello_client,
                 std::span<const std::byte> hello_server);
bool equal_proofs(const Proof& a, const Proof& b);  // constant time

// Where a process id means this machine's: equal for two processes that see each other under their ids. Zeros
// when it cannot be told.
std::array<std::byte, 32> this_machine();

// The key of the proofs when a session is resumed: only the client that was given the secret has it, and
// nothing can be learnt of the token by guessing.
std::string resume_key(const Secret& secret, std::string_view token);

// A session's id as text and in a preamble. Throws ProtocolError when it is no id.
std::string session_id(uint64_t route);
uint64_t session_route(std::string_view id);

std::array<std::byte, 32> sha256(std::span<const std::byte> bytes);

}  // namespace torch_remote::wire
