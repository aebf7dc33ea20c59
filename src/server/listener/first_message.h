#pragma once

#include <cstddef>

#include "base/fd.h"

namespace torch_remote::server {

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
