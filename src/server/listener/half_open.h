#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "base/fd.h"
#include "wire/handshake.h"

namespace torch_remote::server {

constexpr size_t kMaxHalfOpen = 32;  // connections in this state

// A connection whose preamble and first message have not come yet, or which waits in the listener.
struct HalfOpen {
  using Clock = std::chrono::steady_clock;

  // `tls`: the first message of a new client is one of TLS.
  HalfOpen(Fd connected, bool tls, Clock::time_point until);

  Fd socket;
  std::string peer;  // of identify_peer()
  Clock::time_point deadline;
  std::array<std::byte, wire::kPreambleBytes> preamble{};
  size_t received = 0;
  std::optional<wire::Preamble> decoded;  // once it has come
  bool has_tls;
  bool has_part = false;    // of its first message: bytes that are left in the socket
  bool must_speak = false;  // also one that resumes must send its first message
  bool is_whole = false;    // its first message is there, or it needs none
  bool is_told = false;     // that it waits for a process
  bool is_refused = false;  // the reason is sent; it has time to read it
  // Set when its preamble is read but all sessions are taken: when to stop waiting.
  std::optional<Clock::time_point> room_by;
  // Set when its preamble is read but its peer has failed too often: when it is served.
  std::optional<Clock::time_point> served_at;

  bool is_waiting() const { return room_by || served_at; }

  // Whether poll() tells when there is something new to read.
  bool is_polled() const { return !is_waiting() && !has_part; }

  enum class Progress { kWaiting, kComplete, kGone };

  // Reads as much of the preamble as there is, and looks whether a new client's first message is
  // there: Note [Who gets a process]. Whether one that waits has hung up. For one that is refused:
  // waits for its end. Throws ProtocolError when its bytes are wrong; `decoded` is empty where that
  // is the preamble.
  Progress read();

 private:
  Progress read_preamble();
  Progress read_first_message();
};

// Takes out a connection of the peer that has most: the oldest that is not waiting, else the
// newest, so that those that wait longest are served and not ended for the next. Empty: there is
// none. See Note [Limits for each peer] in base/peer_limits.h.
std::optional<HalfOpen> drop_one(std::deque<HalfOpen>& all);
// Adds one that was accepted. Where there are too many then, takes one out as drop_one() does.
std::optional<HalfOpen> add_one(std::deque<HalfOpen>& all, HalfOpen newcomer);

// Note [Who gets a process]
//
// The process of a session costs some 50 MiB and the time to start it. So a new client gets one
// only when the whole first message after its preamble has arrived: a HELLO or, with TLS, a
// ClientHello. The listener looks at it without taking it (MSG_PEEK), at most kMaxHandshakeBytes,
// and the session reads it. Whoever ends before it has proven that it knows the token, by rubbish,
// silence or hanging up, counts as having failed (PeerDelays); and a peer has at most kMostUnproven
// processes whose client has not proven itself. More of its clients wait in the queue.
inline constexpr size_t kMostUnproven = 4;

enum class FirstMessage { kNothing, kPart, kWhole, kGone };

// Does not wait. kGone: the client has closed the connection before its message was whole. Throws
// ProtocolError when the bytes are not the beginning of such a message, or are too many.
FirstMessage look_at_first_message(const Fd& socket, bool has_tls);

// Whether the client has closed its end. It may have sent its message before.
bool has_hung_up(const Fd& socket);

}  // namespace torch_remote::server
