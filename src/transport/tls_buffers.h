#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <openssl/types.h>

namespace torch_remote::transport {

// The two ends of an SSL object in memory: what came from the network and was not decrypted yet,
// and what was encrypted and not sent yet. Externally synchronised; must outlive the SSL object.
struct TlsBuffers {
  std::span<const std::byte> incoming;
  std::vector<std::byte> outgoing;

  // Makes the SSL object read and write here. Reading nothing gives SSL_ERROR_WANT_READ.
  void attach_to(SSL* ssl);
};

}  // namespace torch_remote::transport
