#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/stream.h"
#include "transport/tls_context.h"

namespace torch_remote::transport {

struct TlsOptions {
  // Server: sent as it is to a peer that does not speak TLS.
  std::vector<std::byte> if_plain;
  // Client: reads what a listener says in the clear before TLS begins, from the stream inside.
  // Returns the bytes that it has read and that are of TLS. Empty: a listener says nothing.
  std::function<std::vector<std::byte>(Stream&)> read_words;
  // New keys after so many bytes in one direction. AES-GCM allows 2^24.5 records, which is 380 GB.
  uint64_t rekey_after = uint64_t{64} << 30;
};

// Note [TLS streams]
//
// OpenSSL's object for a connection must not be used by two threads at once. So one mutex is held
// around each of its functions, and OpenSSL reads from and writes to memory only. The bytes go over
// `inner` without the mutex: a thread that waits for the network keeps no other from encrypting or
// decrypting, and a mutex is held for at most four records of 16 KiB.
//
// secure() must have returned before anything is read or written; it does the TLS handshake. There
// is no close_notify: the close frame of a connection says that it ends (transport/frame.h), and
// whatever ends without one is broken.
std::unique_ptr<Stream> tls_stream(std::unique_ptr<Stream> inner,
                                   std::shared_ptr<const TlsContext> context,
                                   TlsOptions options = {});

}  // namespace torch_remote::transport
