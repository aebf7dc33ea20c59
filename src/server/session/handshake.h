#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

#include "transport/stream.h"
#include "wire/handshake.h"

namespace torch_remote::server {

constexpr std::chrono::seconds kHandshakeTime{
    5};  // for everything until the client is authenticated

// The client did not prove that it knows the token.
class AuthenticationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Greeting {
  wire::Version version = wire::kMaxVersion;
  std::string torch_version;  // the client's
  uint64_t received = 0;      // highest sequence that a client which resumes has wholly received
  pid_t process = 0;  // the client's, when it is on this machine; 0: it is not, or nobody knows
};

// The server's side of wire/handshake.h up to PROOF, on a stream that nobody else uses, and not a
// byte further. Calls nothing of torch. `preamble`: what the listener has read; else it is read
// here. `token` empty: none is wanted. Tells the client why when it refuses, then throws
// AuthenticationError, ProtocolError or ConnectionError.
Greeting greet(transport::Stream& stream, const std::optional<wire::Preamble>& preamble,
               const std::string& token);
// The same for a client that comes back to its session; `key` is wire::resume_key().
Greeting greet_again(transport::Stream& stream, const wire::Preamble& preamble,
                     const std::string& key);

void send_welcome(transport::Stream& stream, const wire::Welcome& welcome);
// To a client that comes back: the highest sequence that was wholly received.
void send_resumed(transport::Stream& stream, uint64_t received);
void send_refusal(transport::Stream& stream, const std::string& reason);
// A refusal as bytes, for who has no stream.
std::vector<std::byte> refusal_block(const std::string& reason);

}  // namespace torch_remote::server
