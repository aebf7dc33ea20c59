#include "wire/handshake.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <string>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/error.h"
#include "base/platform.h"
#include "base/text.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

constexpr size_t kSessionDigits = 8;
constexpr std::array<char, 8> kMagic = {'T', 'R', 'E', 'M', 'O', 'T', 'E', '\n'};

void tag(Writer& writer, Tag value) {
  writer.u8(static_cast<uint8_t>(value));
}

void expect(Reader& reader, Tag wanted) {
  const uint8_t got = reader.u8();
  if (got != static_cast<uint8_t>(wanted)) {
    throw ProtocolError(std::string("expected ") + to_text(wanted) + ", got tag " +
                        std::to_string(got));
  }
}

void u16(Writer& writer, Version version) {
  writer.u8(static_cast<uint8_t>(version));
  writer.u8(static_cast<uint8_t>(static_cast<uint16_t>(version) >> 8));
}

Version version(Reader& reader) {
  const uint16_t low = reader.u8();
  const uint16_t high = reader.u8();
  return static_cast<Version>(low | high << 8);
}

template <size_t N>
void read_array(Reader& reader, std::array<std::byte, N>& into) {
  const auto bytes = reader.raw(N);
  std::copy(bytes.begin(), bytes.end(), into.begin());
}

Proof hmac(std::string_view key, std::span<const std::byte> text) {
  Proof proof{};
  unsigned length = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(proof.data()), &length);
  if (made == nullptr || length != proof.size())
    throw InternalError("HMAC-SHA256 failed");
  return proof;
}

std::string range(const char* who, Version min, Version max) {
  return std::string("the ") + who + " has " + std::to_string(static_cast<uint16_t>(min)) + " to " +
         std::to_string(static_cast<uint16_t>(max));
}

}  // namespace

BlockHead encode_block_head(size_t length) {
  return std::bit_cast<BlockHead>(static_cast<uint32_t>(length));
}

uint32_t decode_block_head(const BlockHead& head) {
  const uint32_t length = Reader(head).u32();
  check_limit("bytes of a handshake", length, kMaxHandshakeBytes);
  return length;
}

std::array<std::byte, kPreambleBytes> encode_preamble(const Preamble& preamble) {
  Writer writer;
  writer.raw(std::as_bytes(std::span(kMagic)));
  u16(writer, preamble.min);
  u16(writer, preamble.max);
  writer.u8(preamble.intent);
  for (int i = 0; i < 3; ++i)
    writer.u8(0);
  writer.u64(preamble.route);
  writer.u64(preamble.route_proof);
  std::array<std::byte, kPreambleBytes> bytes{};
  std::copy(writer.view().begin(), writer.view().end(), bytes.begin());
  return bytes;
}

Preamble decode_preamble(std::span<const std::byte, kPreambleBytes> bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    throw ProtocolError("the peer does not speak torch-remote's protocol");
  Reader reader(bytes.subspan(kMagic.size()));
  Preamble preamble;
  preamble.min = version(reader);
  preamble.max = version(reader);
  preamble.intent = reader.u8();
  if (preamble.intent > 1)
    throw ProtocolError("unknown intent in a preamble");
  const uint32_t zero = reader.u8() | reader.u8() | reader.u8();
  preamble.route = reader.u64();
  preamble.route_proof = reader.u64();
  if (zero != 0 || (preamble.intent == 0 && preamble.route_proof != 0))
    throw ProtocolError("reserved bytes are not zero");
  return preamble;
}

Version agree(Version peer_min, Version peer_max) {
  const Version highest = std::min(peer_max, kMaxVersion);
  if (peer_min > peer_max || highest < kMinVersion || highest < peer_min) {
    auto text = [](Version v) { return std::to_string(static_cast<uint16_t>(v)); };
    throw ProtocolError("no common protocol version: this end has " + text(kMinVersion) + " to " +
                        text(kMaxVersion) + ", the other " + text(peer_min) + " to " +
                        text(peer_max));
  }
  return highest;
}

Version agree_as(Side us, Version peer_min, Version peer_max) {
  try {
    return agree(peer_min, peer_max);
  } catch (const ProtocolError&) {
    const bool is_client = us == Side::kClient;
    const std::string ours = range(is_client ? "client" : "server", kMinVersion, kMaxVersion);
    const std::string theirs = range(is_client ? "server" : "client", peer_min, peer_max);
    const bool is_client_older = is_client == (kMaxVersion < peer_max);
    throw ProtocolError("no common protocol version: " + (is_client ? ours : theirs) + ", " +
                        (is_client ? theirs : ours) + "; install the newer torch-remote on the " +
                        (is_client_older ? "client's machine" : "server's machine") + " too");
  }
}

void encode(Writer& writer, const Hello& hello) {
  tag(writer, Tag::kHello);
  u16(writer, hello.min);
  u16(writer, hello.max);
  writer.raw(hello.nonce);
  writer.text(hello.torch_version);
  writer.varint(hello.capabilities);
  writer.varint(hello.received);
  writer.raw(hello.machine);
  writer.varint(hello.process);
  writer.u8(hello.has_proof ? 1 : 0);
  if (hello.has_proof)
    writer.raw(hello.proof);
}

Hello decode_hello(std::span<const std::byte> body) {
  Reader reader(body);
  expect(reader, Tag::kHello);
  Hello hello;
  hello.min = version(reader);
  hello.max = version(reader);
  read_array(reader, hello.nonce);
  hello.torch_version = reader.text(64, "torch version");
  hello.capabilities = reader.varint();
  hello.received = reader.varint();
  read_array(reader, hello.machine);
  hello.process = reader.varint();
  hello.has_proof = reader.u8() != 0;
  if (hello.has_proof)
    read_array(reader, hello.proof);
  reader.finish();
  return hello;
}

void encode(Writer& writer, const ProofMessage& message) {
  tag(writer, Tag::kProof);
  writer.u8(message.has_proof ? 1 : 0);
  if (message.has_proof)
    writer.raw(message.proof);
}

ProofMessage decode_proof(std::span<const std::byte> body) {
  Reader reader(body);
  expect(reader, Tag::kProof);
  ProofMessage message;
  message.has_proof = reader.u8() != 0;
  if (message.has_proof)
    read_array(reader, message.proof);
  reader.finish();
  return message;
}

void encode(Writer& writer, const Welcome& welcome) {
  tag(writer, Tag::kWelcome);
  writer.u8(static_cast<uint8_t>(welcome.answer));
  if (welcome.answer == Answer::kRefused)
    return writer.text(welcome.reason);
  if (welcome.answer == Answer::kResumed)
    return writer.varint(welcome.received);
  u16(writer, welcome.version);
  writer.text(welcome.session);
  writer.raw(welcome.secret);
  writer.varint(welcome.lease);
  writer.text(welcome.host);
  writer.varint(welcome.pid);
  writer.text(welcome.torch_version);
  writer.u8(welcome.mkldnn);
  writer.u8(welcome.mkldnn_bf16);
  writer.u8(welcome.mkldnn_fp16);
  writer.varint(welcome.cudnn);
  writer.raw(welcome.operators);
  writer.varint(welcome.devices.size());
  for (const DeviceProperties& device : welcome.devices) {
    writer.u8(static_cast<uint8_t>(device.kind));
    writer.text(device.name);
    writer.varint(device.total_memory);
    writer.varint(device.major);
    writer.varint(device.minor);
    writer.varint(device.multi_processors);
  }
}

namespace {

DeviceProperties decode_device(Reader& reader) {
  DeviceProperties device;
  const uint8_t kind = reader.u8();
  if (kind > 1)
    throw ProtocolError("no such device kind");
  device.kind = static_cast<DeviceKind>(kind);
  device.name = readable_line(reader.bytes(256, "device name"));
  device.total_memory = reader.varint();
  device.major = static_cast<uint32_t>(reader.count(1 << 16, "capability"));
  device.minor = static_cast<uint32_t>(reader.count(1 << 16, "capability"));
  device.multi_processors = static_cast<uint32_t>(reader.count(1 << 20, "processors"));
  return device;
}

}  // namespace

bool is_welcome(std::span<const std::byte> body) {
  return !body.empty() && body[0] == static_cast<std::byte>(Tag::kWelcome);
}

Welcome decode_welcome(std::span<const std::byte> body) {
  Reader reader(body);
  expect(reader, Tag::kWelcome);
  Welcome welcome;
  const uint8_t answer = reader.u8();
  if (answer > static_cast<uint8_t>(Answer::kResumed))
    throw ProtocolError("unknown answer in a WELCOME");
  welcome.answer = static_cast<Answer>(answer);
  if (welcome.answer != Answer::kNew) {
    if (welcome.answer == Answer::kRefused)
      welcome.reason = reader.readable_text(1024, "reason");
    else
      welcome.received = reader.varint();
    reader.finish();
    return welcome;
  }
  welcome.version = version(reader);
  welcome.session = readable_line(std::as_bytes(std::span(reader.text(64, "session id"))));
  read_array(reader, welcome.secret);
  welcome.lease = reader.varint();
  welcome.host = readable_line(reader.bytes(256, "host name"));
  welcome.pid = reader.varint();
  welcome.torch_version = readable_line(std::as_bytes(std::span(reader.text(64, "torch version"))));
  welcome.mkldnn = reader.u8() != 0;
  welcome.mkldnn_bf16 = reader.u8() != 0;
  welcome.mkldnn_fp16 = reader.u8() != 0;
  welcome.cudnn = reader.varint();
  read_array(reader, welcome.operators);
  const uint64_t n = reader.count(kMaxDevices, "devices");
  for (uint64_t i = 0; i < n; ++i)
    welcome.devices.push_back(decode_device(reader));
  reader.finish();
  return welcome;
}

Proof make_proof(std::string_view token, Side side, std::span<const std::byte> hello_client,
                 std::span<const std::byte> hello_server, std::span<const std::byte> binding) {
  Writer transcript;
  transcript.u8(static_cast<uint8_t>(side));
  transcript.bytes(hello_client);
  transcript.bytes(hello_server);
  if (!binding.empty())
    transcript.bytes(binding);
  return hmac(token, transcript.view());
}

uint64_t route_proof(std::string_view resume_key) {
  // A transcript of make_proof() never begins with these bytes: its first byte is a Side.
  constexpr std::string_view kPurpose = "torch-remote route proof";
  const Proof proof = hmac(resume_key, std::as_bytes(std::span(kPurpose)));
  return Reader(proof).u64();
}

std::array<std::byte, 32> this_machine() {
  const std::string identity = machine_identity();
  if (identity.empty())
    return {};
  return sha256(std::as_bytes(std::span(identity)));
}

std::string resume_key(const Secret& secret, std::string_view token) {
  std::string key(reinterpret_cast<const char*>(secret.data()), secret.size());
  return key.append(token);
}

std::string resume_key_without_token(const Secret& secret, std::string_view token) {
  static_assert(sizeof(Secret) + kShortToken == 64, "the block of SHA-256");
  std::string key = resume_key(secret, token);
  if (token.size() <= kShortToken)
    return key;
  const auto hash = sha256(std::as_bytes(std::span(key)));
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

std::string session_id(uint64_t route) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id(kSessionDigits, '0');
  for (size_t i = 0; i < kSessionDigits; ++i)
    id[kSessionDigits - 1 - i] = kDigits[(route >> (4 * i)) & 15];
  return id;
}

uint64_t session_route(std::string_view id) {
  uint64_t route = 0;
  const char* const end = id.data() + id.size();
  const auto [rest, error] = std::from_chars(id.data(), end, route, 16);
  if (id.size() != kSessionDigits || error != std::errc() || rest != end)
    throw ProtocolError("malformed session id");
  return route;
}

bool equal_proofs(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest cache_owner(std::string_view token, std::string_view peer) {
  std::string text = "torch-remote cache of ";
  if (peer.starts_with("uid "))
    text += peer;
  return hmac(token, std::as_bytes(std::span(text)));
}

WaitingBlock waiting_block() {
  constexpr std::byte kWaiting{3};
  WaitingBlock block{};
  std::ranges::copy(encode_block_head(2), block.begin());
  block[4] = static_cast<std::byte>(Tag::kWelcome);
  block[5] = kWaiting;
  return block;
}

bool holds_hello(std::span<const std::byte> received) {
  BlockHead head;
  if (received.size() < head.size())
    return false;
  std::ranges::copy(received.first(head.size()), head.begin());
  const uint64_t length = decode_block_head(head);
  check_limit("bytes of a handshake", kPreambleBytes + head.size() + length, kMaxHandshakeBytes);
  const auto body = received.subspan(head.size());
  if (!body.empty() && body[0] != static_cast<std::byte>(Tag::kHello))
    throw ProtocolError("expected HELLO, got tag " +
                        std::to_string(std::to_integer<unsigned>(body[0])));
  if (body.size() < length)
    return false;
  static_cast<void>(decode_hello(body.first(length)));
  return true;
}

}  // namespace torch_remote::wire
