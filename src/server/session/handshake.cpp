#include "server/session/handshake.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include <torch/version.h>

#include "base/error.h"
#include "base/platform.h"
#include "transport/deadline.h"
#include "transport/tls_error.h"
#include "transport/tls_stream.h"
#include "wire/handshake.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

using Bytes = std::vector<std::byte>;

enum class Intent : uint8_t { kNew = 0, kResume = 1 };

// Reads exactly the bytes of the handshake, so that the frames after it stay in the stream.
class LimitedReader {
 public:
  LimitedReader(transport::Stream& stream, uint64_t limit) : stream_(stream), left_(limit) {}

  void read(std::span<std::byte> into) {
    check_fits(into.size());
    left_ -= into.size();
    while (!into.empty()) {
      const size_t got = stream_.read_some(into);
      if (got == 0)
        throw ConnectionError("the client left, or took too long, during the handshake");
      into = into.subspan(got);
    }
  }

  Bytes read_block() {
    wire::BlockHead head;
    read(head);
    const uint32_t length = wire::decode_block_head(head);
    check_fits(length);
    Bytes body(length);
    read(body);
    return body;
  }

 private:
  void check_fits(uint64_t length) const {
    const uint64_t read_before = wire::kMaxHandshakeBytes - left_;
    wire::check_limit("bytes of a handshake", read_before + length, wire::kMaxHandshakeBytes);
  }

  transport::Stream& stream_;
  uint64_t left_;
};

template <typename Message>
Bytes body_of(const Message& message) {
  wire::Writer writer;
  encode(writer, message);
  return writer.take();
}

void write_block(transport::Stream& stream, const Bytes& body) {
  const wire::BlockHead head = wire::encode_block_head(body.size());
  const std::array<std::span<const std::byte>, 2> parts = {head, body};
  stream.write(parts);
}

wire::Preamble read_preamble(LimitedReader& reader) {
  std::array<std::byte, wire::kPreambleBytes> bytes{};
  reader.read(bytes);
  return wire::decode_preamble(bytes);
}

// Sends our HELLO, in answer to one with this body. Returns the proof that the client must send.
std::optional<wire::Proof> send_hello(transport::Stream& stream, const Bytes& client_body,
                                      const MakeProofs& make_proofs, uint64_t capabilities) {
  wire::Hello hello;
  random_bytes(hello.nonce);
  hello.torch_version = TORCH_VERSION;
  hello.capabilities = capabilities;
  std::optional<wire::Proof> wanted;
  if (make_proofs) {
    const Proofs proofs = make_proofs(client_body, body_of(hello), stream.channel_binding());
    hello.has_proof = true;
    hello.proof = proofs.server;
    wanted = proofs.client;
  }
  write_block(stream, body_of(hello));
  return wanted;
}

void check_proof(const wire::ProofMessage& message, const std::optional<wire::Proof>& wanted,
                 Intent intent) {
  if (!wanted)
    return;
  if (intent == Intent::kNew && !message.has_proof)
    throw AuthenticationError(
        "this server wants a token; set TORCH_REMOTE_TOKEN_FILE on the client to a copy of the "
        "server's --token-file");
  if (!wire::equal_proofs(message.proof, *wanted)) {
    throw AuthenticationError(
        intent == Intent::kResume
            ? "this is another client's session"
            : "the token is wrong; TORCH_REMOTE_TOKEN_FILE on the client must "
              "name a copy of the server's --token-file");
  }
}

// Begins TLS, where the stream has it. The listener has read the preamble in the clear, where
// anybody can change it; the client sends it again inside. If they differ, nothing is answered: the
// client tries again.
void secure(transport::Stream& stream, LimitedReader& reader,
            const std::optional<wire::Preamble>& preamble) {
  try {
    stream.secure({});
  } catch (const transport::TlsError& error) {
    throw AuthenticationError(error.what());
  }
  if (!preamble || stream.channel_binding().empty())
    return;
  if (wire::encode_preamble(read_preamble(reader)) != wire::encode_preamble(*preamble))
    throw ConnectionError("the preamble was changed on its way");
}

void check_preamble(const wire::Preamble& preamble, Intent wanted) {
  wire::agree_as(wire::Side::kServer, preamble.min, preamble.max);
  if (preamble.intent != static_cast<uint8_t>(wanted))
    throw ProtocolError("there is no session to resume here");
}

// The client's process id if it is on this machine, else 0.
pid_t local_process(const wire::Hello& hello) {
  const auto here = wire::this_machine();
  const bool is_known = here != decltype(here){} && hello.machine == here;
  return is_known && hello.process <= INT32_MAX ? static_cast<pid_t>(hello.process) : 0;
}

// A client with another token, or where only one of both has a token, leaves at the server's HELLO.
Bytes read_proof(LimitedReader& reader, bool is_wanted) {
  try {
    return reader.read_block();
  } catch (const ConnectionError& error) {
    const std::string why = std::string(" (") + error.what() + ")";
    if (!is_wanted) {
      throw ConnectionError(
          "the client left, or took too long, in the middle of the handshake; it may have a token "
          "while this server has none (--token-file)" +
          why);
    }
    throw AuthenticationError(
        "the client left, or took too long, before it proved that it knows the token; it may have "
        "another one, or none (TORCH_REMOTE_TOKEN_FILE on the client)" +
        why);
  }
}

Greeting exchange(transport::Stream& stream, const std::optional<wire::Preamble>& preamble,
                  Intent intent, const MakeProofs& make_proofs, uint64_t capabilities) {
  const uint64_t read_before = preamble ? wire::kPreambleBytes : 0;
  LimitedReader reader(stream, wire::kMaxHandshakeBytes - read_before);
  secure(stream, reader, preamble);
  check_preamble(preamble ? *preamble : read_preamble(reader), intent);
  const Bytes body = reader.read_block();
  const wire::Hello hello = wire::decode_hello(body);
  Greeting greeting{wire::agree_as(wire::Side::kServer, hello.min, hello.max), hello.torch_version,
                    hello.received, local_process(hello), hello.capabilities};
  const std::optional<wire::Proof> wanted = send_hello(stream, body, make_proofs, capabilities);
  check_proof(wire::decode_proof(read_proof(reader, wanted.has_value())), wanted, intent);
  return greeting;
}

void wipe(std::string* secret) {
  ::explicit_bzero(secret->data(), secret->size());
  delete secret;
}

Greeting greet_within_limits(transport::Stream& stream,
                             const std::optional<wire::Preamble>& preamble, Intent intent,
                             const MakeProofs& make_proofs, uint64_t capabilities) {
  const transport::Deadline deadline(stream, kHandshakeTime);
  try {
    return exchange(stream, preamble, intent, make_proofs, capabilities);
  } catch (const AuthenticationError& error) {
    send_refusal(stream, error.what());
    throw;
  } catch (const ProtocolError& error) {
    send_refusal(stream, error.what());
    throw;
  }
}

}  // namespace

MakeProofs proofs_with(std::string token) {
  if (token.empty())
    return {};
  const std::shared_ptr<const std::string> kept(new std::string(std::move(token)), wipe);
  return [kept](std::span<const std::byte> client, std::span<const std::byte> server,
                std::span<const std::byte> binding) -> Proofs {
    return {wire::make_proof(*kept, wire::Side::kServer, client, server, binding),
            wire::make_proof(*kept, wire::Side::kClient, client, server, binding)};
  };
}

std::unique_ptr<transport::Stream> encrypted(std::unique_ptr<transport::Stream> stream,
                                             std::shared_ptr<const transport::TlsContext> tls) {
  if (tls == nullptr)
    return stream;
  transport::TlsOptions options;
  options.if_plain = refusal_block(kWantsTls);
  return transport::tls_stream(std::move(stream), std::move(tls), std::move(options));
}

Greeting greet(transport::Stream& stream, const std::optional<wire::Preamble>& preamble,
               const MakeProofs& make_proofs, uint64_t capabilities) {
  return greet_within_limits(stream, preamble, Intent::kNew, make_proofs, capabilities);
}

Greeting greet_again(transport::Stream& stream, const wire::Preamble& preamble,
                     const std::string& key) {
  return greet_within_limits(stream, preamble, Intent::kResume, proofs_with(key),
                             wire::kCapabilities);
}

void send_welcome(transport::Stream& stream, const wire::Welcome& welcome) {
  write_block(stream, body_of(welcome));
}

void send_resumed(transport::Stream& stream, uint64_t received) {
  wire::Welcome welcome;
  welcome.answer = wire::Answer::kResumed;
  welcome.received = received;
  send_welcome(stream, welcome);
}

namespace {

wire::Welcome refusal(const std::string& reason) {
  wire::Welcome welcome;
  welcome.answer = wire::Answer::kRefused;
  welcome.reason = reason.substr(0, 1024);
  return welcome;
}

}  // namespace

std::vector<std::byte> refusal_block(const std::string& reason) {
  const Bytes body = body_of(refusal(reason));
  const wire::BlockHead head = wire::encode_block_head(body.size());
  Bytes block(head.size() + body.size());
  std::ranges::copy(body, std::ranges::copy(head, block.begin()).out);
  return block;
}

void send_refusal(transport::Stream& stream, const std::string& reason) {
  try {
    send_welcome(stream, refusal(reason));
  } catch (const ConnectionError&) {
    // The client has left before it got the reason.
  }
}

void refuse_in_tls(transport::Stream& stream, const wire::Preamble& preamble,
                   const std::string& reason) {
  const transport::Deadline deadline(stream, kHandshakeTime);
  LimitedReader reader(stream, wire::kMaxHandshakeBytes);
  secure(stream, reader, preamble);
  send_refusal(stream, reason);
  std::array<std::byte, 256> unread;
  for (size_t left = wire::kMaxHandshakeBytes; left > 0;) {
    const size_t got = stream.read_some(std::span(unread).first(std::min(left, unread.size())));
    if (got == 0)
      return;
    left -= got;
  }
}

}  // namespace torch_remote::server
