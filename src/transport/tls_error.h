#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <openssl/types.h>

#include "base/error.h"
#include "transport/tls_context.h"

namespace torch_remote::transport {

// The two ends cannot agree on TLS, and will not at the next try either: one of them must be set up
// in another way. All other failures of TLS are plain ConnectionErrors.
class TlsError : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

// Whether bytes can be the beginning of a TLS connection.
bool looks_like_tls(std::span<const std::byte> first);

// For a peer whose first bytes are not those of TLS.
[[noreturn]] void throw_no_tls(const TlsContext& context);

// After an SSL function has failed with SSL_ERROR_SSL: throws TlsError or ConnectionError, with a
// sentence for the user that says what to do. `doing` is for the others: "reading from PEER".
[[noreturn]] void throw_tls_failure(const SSL* ssl, const TlsContext& context,
                                    const SeenCertificate& seen, const std::string& doing);

}  // namespace torch_remote::transport
