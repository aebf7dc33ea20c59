#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "transport/address.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Nothing could be reached at an address: "connecting to ADDRESS: REASON".
class DialError : public ConnectionError {
 public:
  DialError(const std::string& address, std::string reason);

  const std::string& reason() const noexcept { return reason_; }

 private:
  std::string reason_;
};

// Connects, or throws DialError or another ConnectionError by the deadline. Looking up a host name
// may take longer. The stream of a tls:// address is the bare one, for tls_stream(). `check` may
// refuse the socket, once it is connected: it throws.
std::unique_ptr<Stream> dial(const Address& address, std::chrono::steady_clock::time_point deadline,
                             const std::function<void(const Fd&)>& check = {});

// Throws std::invalid_argument if listen_on() refuses the address: tcp:// beyond loopback.
void check_listening(const Address& address);
// Makes a listening socket for accept_connection(). tcp:// works on loopback only (127.0.0.0/8,
// ::1, localhost), tls:// on every address; port 0 is replaced by the chosen one. A Unix socket is
// open to its owner only; an unused socket file is replaced. Throws std::invalid_argument for an
// address that is refused, else ConnectionError.
Fd listen_on(Address& address);

}  // namespace torch_remote::transport
