#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/stream.h"
#include "wire/handshake.h"

namespace torch_remote::client {

// For a server that was just started, which loads libtorch first.
inline constexpr std::chrono::seconds kStartTime{60};
// For a server that listens already.
inline constexpr std::chrono::seconds kAnswerTime{8};

// The client's side of the handshake (wire/handshake.h), on a stream that nothing else uses. Throws
// ProtocolError, HandshakeCut, or ConnectionError if refused or after a silence of `answer_time`.
wire::Welcome shake_hands(transport::Stream& stream, const std::string& token,
                          std::chrono::seconds answer_time = kStartTime);

// The connection was lost during the handshake: another may succeed.
class HandshakeCut : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// The server has refused, and would refuse again.
class RefusedByServer : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// What a client needs to resume its session.
struct Ticket {
  std::string session;
  wire::Secret secret{};
  std::string token;
};

// Resumes a session, within `time`, on a server with these capabilities. Sends how much was
// received and returns how much the server has received. Throws RefusedByServer if the session is
// gone.
uint64_t shake_hands_again(transport::Stream& stream, const Ticket& ticket, uint64_t capabilities,
                           uint64_t received, std::chrono::milliseconds time);

// How long a new client waits for a process, while the server says that it waits.
inline constexpr std::chrono::minutes kQueueTime{10};

// Reads what a listener says before TLS begins (wire/handshake.h), for TlsOptions::read_words: only
// shake_hands() and shake_hands_again() secure such a stream, on their own thread.
std::vector<std::byte> read_words(transport::Stream& bare);

}  // namespace torch_remote::client
