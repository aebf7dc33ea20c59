#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

#include "transport/stream.h"
#include "transport/tls_context.h"
#include "wire/handshake.h"

namespace torch_remote::server {

constexpr std::chrono::seconds kHandshakeTime{5};  // until the client is authenticated

// The client has not proven that it knows the token, or cannot agree on TLS with this server.
class AuthenticationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Greeting {
  wire::Version version = wire::kMaxVersion;
  std::string torch_version;  // the client's
  uint64_t received = 0;      // resume: highest sequence that the client has received whole
  pid_t process = 0;          // the client's, if it is on this machine; else 0
  uint64_t capabilities = 0;  // the client's
};

// The proofs of both sides for one handshake: over both HELLO bodies and the TLS connection.
struct Proofs {
  wire::Proof server{};
  wire::Proof client{};
};

// Makes the proofs, or has them made by who knows the token. May throw. Empty: no proof is wanted.
using MakeProofs = std::function<Proofs(std::span<const std::byte> hello_client,
                                        std::span<const std::byte> hello_server,
                                        std::span<const std::byte> binding)>;
// With this token or key, of which it keeps a copy. Empty for an empty one.
MakeProofs proofs_with(std::string token);

// The stream inside TLS, which greet() begins; the same stream where `tls` is null. A client that
// does not speak TLS is told to.
std::unique_ptr<transport::Stream> encrypted(std::unique_ptr<transport::Stream> stream,
                                             std::shared_ptr<const transport::TlsContext> tls);

// The server's part of wire/handshake.h up to PROOF. Reads not a byte more and calls nothing of
// torch. Reads the preamble too where `preamble` is empty. Sends the reason to the client when it
// refuses, and throws AuthenticationError, ProtocolError or ConnectionError.
Greeting greet(transport::Stream& stream, const std::optional<wire::Preamble>& preamble,
               const MakeProofs& make_proofs, uint64_t capabilities = wire::kCapabilities);
// The same for a client that resumes; `key` is wire::resume_key().
Greeting greet_again(transport::Stream& stream, const wire::Preamble& preamble,
                     const std::string& key);

void send_welcome(transport::Stream& stream, const wire::Welcome& welcome);
// For a client that resumes: `received` is the highest sequence received whole.
void send_resumed(transport::Stream& stream, uint64_t received);
void send_refusal(transport::Stream& stream, const std::string& reason);
// Refuses a client inside TLS, so that it can believe the reason, and waits until it has left, at
// most kHandshakeTime. Throws like greet().
void refuse_in_tls(transport::Stream& stream, const wire::Preamble& preamble,
                   const std::string& reason);
// For a client that does not speak TLS, from a server that does.
inline constexpr const char* kWantsTls =
    "this server speaks TLS: connect to tls:// in place of tcp://, with the address that it prints "
    "when it starts";
// A refusal as bytes, for callers without a stream.
std::vector<std::byte> refusal_block(const std::string& reason);

}  // namespace torch_remote::server
