#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

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
};

// The server's side of wire/handshake.h up to PROOF, on a stream that nobody else uses, and not a
// byte further. Calls nothing of torch. `preamble`: what the listener has read; else it is read
// here. `token` empty: none is wanted. Tells the client why when it refuses, then throws
// AuthenticationError, ProtocolError or ConnectionError.
Greeting greet(transport::Stream& stream, const std::optional<wire::Preamble>& preamble,
               const std::string& token);

void send_welcome(transport::Stream& stream, const wire::Welcome& welcome);
void send_refusal(transport::Stream& stream, const std::string& reason);

}  // namespace torch_remote::server
