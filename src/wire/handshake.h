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
#include "wire/version.h"

namespace torch_remote::wire {

// How a connection begins. An unauthenticated peer can send only a preamble, a HELLO and a PROOF,
// kMaxHandshakeBytes in all.
//
//   client  preamble                         32 bytes, plain, read by the listener
//           HELLO      block                 block := length:u32 body
//   server  HELLO      block                 with its proof, when there is a token
//   client  PROOF      block                 messages frames may follow at once
//   server  WELCOME    block                 then messages frames
//
// Client and server prove that they know the token without sending it: HMAC-SHA256(token, side ∥
// both HELLO bodies without the proof). The server proves first, so that another process on its
// port learns nothing from the client.
//
// On tls:// the TLS handshake comes after the preamble, and everything from HELLO on is inside TLS.
// The client sends the preamble there once more: the server refuses a connection whose plain
// preamble was another. The channel binding of the TLS connection is part of the proofs, so that
// they are worth nothing on any other connection.
//
// A resumed session begins in the same way, but with resume_key() in place of the token; its
// WELCOME says only what the server has received.
//
// Whoever has seen a session's id can ask to resume it, and a server has few places for handshakes
// with such clients. So a client that resumes shows in the preamble already that it is the
// session's: `route_proof`. Somebody who reads the wire can show it too, and gains a place only.
//
//   preamble := magic:8 min:u16 max:u16 intent:u8 zero:3 route:u64 route_proof:u64
struct Preamble {
  Version min = kMinVersion;
  Version max = kMaxVersion;
  uint8_t intent = 0;        // 0 new session, 1 resume
  uint64_t route = 0;        // for resume: the id of the session
  uint64_t route_proof = 0;  // for resume, with kRouteProofCapability: of route_proof(); else 0
};

// The head of a block: its length. Decoding throws ProtocolError over kMaxHandshakeBytes.
using BlockHead = std::array<std::byte, 4>;
BlockHead encode_block_head(size_t length);
uint32_t decode_block_head(const BlockHead& head);

constexpr size_t kPreambleBytes = 32;
std::array<std::byte, kPreambleBytes> encode_preamble(const Preamble& preamble);
Preamble decode_preamble(std::span<const std::byte, kPreambleBytes> bytes);

// The highest version that both have. Throws ProtocolError, which names both ranges.
Version agree(Version peer_min, Version peer_max);

enum class Side : uint8_t { kClient = 1, kServer = 2 };

// agree(), for this end of a connection. Its ProtocolError is for the user of either end: it gives
// the versions of both, and says which end to upgrade.
Version agree_as(Side us, Version peer_min, Version peer_max);

// What an end can do beyond its protocol version: bits of Hello::capabilities.
constexpr uint64_t kStreamsCapability = 1 << 0;     // STREAM, QUERY kStream, kEvent, kElapsed
constexpr uint64_t kMemoryCapability = 1 << 1;      // QUERY kMemory
constexpr uint64_t kSparseCapability = 1 << 2;      // ValueKind::kSparse, ResultKind::kSparse
constexpr uint64_t kTelemetryCapability = 1 << 3;   // QUERY kTelemetry
constexpr uint64_t kRouteProofCapability = 1 << 4;  // Preamble::route_proof
constexpr uint64_t kProfileCapability = 1 << 5;     // QUERY kProfile
constexpr uint64_t kGroupsCapability = 1 << 7;      // QUERY kGroup, operators of collectives
constexpr uint64_t kProgramsCapability = 1 << 9;    // PROGRAM, RUN, DROP (program.h)
constexpr uint64_t kCancelCapability = 1 << 11;     // CANCEL
constexpr uint64_t kWarningsCapability = 1 << 12;   // a client's: it takes WARNING (warning.h)
constexpr uint64_t kShortageCapability = 1 << 13;   // a client's: Error::wanted and Error::free
// Only of servers that were started for it, so not in kCapabilities: --peers (QUERY kPeer), --cache
// (QUERY kCachedUploads), --files (QUERY kFile, FILL, CLOSE_FILE).
constexpr uint64_t kPeersCapability = 1 << 6;
constexpr uint64_t kUploadCacheCapability = 1 << 8;
constexpr uint64_t kFilesCapability = 1 << 14;
constexpr uint64_t kCapabilities = kStreamsCapability | kMemoryCapability | kSparseCapability |
                                   kTelemetryCapability | kRouteProofCapability |
                                   kProfileCapability | kGroupsCapability | kProgramsCapability |
                                   kCancelCapability | kWarningsCapability | kShortageCapability;

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

//   hello-body := tag:u8 min:u16 max:u16 nonce:32 torch:text capabilities:varint received:varint
//                 machine:32 process:varint has_proof:u8 [proof:32]
struct Hello {
  Version min = kMinVersion;
  Version max = kMaxVersion;
  Nonce nonce{};
  std::string torch_version;
  uint64_t capabilities = kCapabilities;
  // Client only. A server on the same machine ends the session when process `process` ends.
  uint64_t received = 0;                // highest sequence received whole, for resume
  std::array<std::byte, 32> machine{};  // hash that tells where `process` is valid; zeros: unknown
  uint64_t process = 0;
  bool has_proof = false;  // server only
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

// All that the client needs to know of the server, so that it need not ask later.
//
//   welcome-body := tag:u8 0:u8 reason:text
//                 | tag:u8 1:u8 version:u16 session:text secret:32 lease:varint host:text
//                   pid:varint torch:text mkldnn:u8 mkldnn_bf16:u8 mkldnn_fp16:u8 cudnn:varint
//                   operators:32 n:varint device*n
//                 | tag:u8 2:u8 received:varint
struct Welcome {
  Answer answer = Answer::kNew;
  std::string reason;     // kRefused
  uint64_t received = 0;  // kResumed: highest sequence that the server has received whole
  Version version = kMaxVersion;
  std::string session;  // eight hexadecimal digits
  Secret secret{};      // proves on resume that the client is the same
  uint64_t lease = 0;   // milliseconds that the session lives on without a connection; 0: none
  std::string host;
  uint64_t pid = 0;
  std::string torch_version;
  bool mkldnn = false;
  bool mkldnn_bf16 = false;
  bool mkldnn_fp16 = false;
  uint64_t cudnn = 0;                     // its version; 0: no cuDNN
  std::array<std::byte, 32> operators{};  // SHA-256 of the sorted operator schemas
  std::vector<DeviceProperties> devices;
  uint64_t capabilities = 0;  // those of the server's HELLO; not in this message

  bool ok() const { return answer != Answer::kRefused; }
};

void encode(Writer& writer, const Welcome& welcome);
Welcome decode_welcome(std::span<const std::byte> body);
// A server that refuses a client may send WELCOME in place of its HELLO.
bool is_welcome(std::span<const std::byte> body);

// `hello_client` and `hello_server` are the bodies as sent, the server's without its proof.
// `binding` is the channel binding of the TLS connection; empty: there is no TLS of ours.
Proof make_proof(std::string_view token, Side side, std::span<const std::byte> hello_client,
                 std::span<const std::byte> hello_server, std::span<const std::byte> binding = {});
bool equal_proofs(const Proof& a, const Proof& b);  // constant time

// Equal in two processes that share their process ids (machine and namespace). Zeros: unknown.
std::array<std::byte, 32> this_machine();

// The key for the proofs of a resume. Only the client that got the secret has it, and the proofs
// do not help to guess the token.
std::string resume_key(const Secret& secret, std::string_view token);
// A key that makes the same proofs and does not contain the token, where the token is longer than
// kShortToken: HMAC itself hashes keys of more than 64 bytes.
std::string resume_key_without_token(const Secret& secret, std::string_view token);
inline constexpr size_t kShortToken = 32;

// For a preamble: 64 bits that only who knows the key of a resume can make.
uint64_t route_proof(std::string_view resume_key);

// A session's id as text and as the number in a preamble. Throws ProtocolError for a wrong id.
std::string session_id(uint64_t route);
uint64_t session_route(std::string_view id);

// Names who a cached upload belongs to: who knows the token and, on a Unix socket, has this user id
// (identify_peer()). Does not tell the token.
Digest cache_owner(std::string_view token, std::string_view peer);

// A listener that has no process ready for a new client tells it from time to time that it waits,
// if the client has said that it understands that: by waiting_block(), in the clear also on tls://,
// before anything else that it sends. Nobody proves it, and it only lengthens the client's wait.

// Bits of Preamble::route of a new session. Servers ignore those that they do not know.
constexpr uint64_t kAwaitsProcess = 1;

// block := 2:u32 tag:u8 3:u8                a WELCOME; 3 comes after the values of Answer
//
// Begins as neither a record of TLS nor any other block of a handshake does.
using WaitingBlock = std::array<std::byte, sizeof(BlockHead) + 2>;
WaitingBlock waiting_block();

// Whether what a new client has sent after its preamble begins with a whole HELLO block. Throws
// ProtocolError when it never will: another tag, a wrong body, or more bytes than a handshake has.
bool holds_hello(std::span<const std::byte> received);

}  // namespace torch_remote::wire
