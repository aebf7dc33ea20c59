#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "transport/stream.h"
#include "wire/handshake.h"

namespace torch_remote::client {

// A server that has just been started loads libtorch first.
inline constexpr std::chrono::seconds kStartTime{60};
// A server that listens already says something at once.
inline constexpr std::chrono::seconds kAnswerTime{8};

// The client's side of the handshake (wire/handshake.h), on a stream that nobody else reads or
// writes. Throws ProtocolError, HandshakeCut, or ConnectionError when the server refuses or has
// said nothing for `answer_time`.
wire::Welcome shake_hands(transport::Stream& stream, const std::string& token,
                          std::chrono::seconds answer_time = kStartTime);

// The connection was lost in the middle of the handshake: another one may get through.
class HandshakeCut : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// The server has said no, and will say so again.
class Refused : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// What a client needs to come back to its session.
struct Ticket {
  std::string session;
  wire::Secret secret{};
  std::string token;
};

// The same for a client that comes back, within `time`. Tells the server what was received, and gives
// what the server has received. Throws Refused when the session is gone.
uint64_t shake_hands_again(transport::Stream& stream, const Ticket& ticket, uint64_t received,
                           std::chrono::milliseconds time);

}  // namespace torch_remote::client
