#pragma once

#include <chrono>
#include <memory>

#include "base/fd.h"
#include "transport/address.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Connects, or throws ConnectionError by the deadline. Looking a host name up may take longer than
// that.
std::unique_ptr<Stream> dial(const Address& address,
                             std::chrono::steady_clock::time_point deadline);

// A listening socket for accept_connection(). TCP only on loopback (127.0.0.0/8, ::1, localhost);
// port 0 is replaced by the one chosen. A Unix socket is made for its owner only; a socket file
// that nobody listens on any more is replaced. Throws std::invalid_argument for an address that is
// refused, ConnectionError for the rest.
Fd listen_on(Address& address);

}  // namespace torch_remote::transport
