#pragma once

#include <memory>
#include <string>

#include <openssl/types.h>

#include "transport/address.h"

namespace torch_remote::transport {

// What one end brings to a TLS connection: its certificate and key, and how it checks the peer's.
// TLS 1.3 only, without session tickets. Thread-safe once it is made; streams keep it alive.
class TlsContext {
 public:
  // For an address of scheme "tls". `pin`: the server has the certificate with this SHA-256,
  // whatever its name and dates. Without a pin: its certificate is for this host, and is signed by
  // an authority of this system, or of the file `ca`. `cert` and `key`: the client's own, for
  // servers with --client-ca; without a key it is in the file `cert` too.
  // Throws std::invalid_argument with a message for the user.
  static std::shared_ptr<const TlsContext> client(const Address& address);
  // For a server: PEM files with its certificate chain and key. `client_ca`: clients must show a
  // certificate that an authority in this file has signed; empty: they need none.
  static std::shared_ptr<const TlsContext> server(const std::string& cert, const std::string& key,
                                                  const std::string& client_ca);

  // The same with a certificate and its key as PEM, of make_certificate().
  static std::shared_ptr<const TlsContext> server_with(const std::string& pem);

  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  SSL_CTX* get() const { return context_; }

  bool is_server() const { return is_server_; }

  // Client: what the server's certificate must match.
  const std::string& host() const { return host_; }

  const std::string& wanted_pin() const { return pin_; }

  // Server: the pin of its own certificate.
  const std::string& own_pin() const { return pin_; }

 private:
  explicit TlsContext(bool is_server);
  void use_identity(const std::string& cert, const std::string& key);

  SSL_CTX* const context_;
  const bool is_server_;
  std::string host_;
  std::string pin_;
};

// What a client's stream learns of the server's certificate, for errors. A client's context fills
// in the one that is the app data of the SSL object.
struct SeenCertificate {
  std::string wanted_pin;  // empty: the certificate is checked by name and authority
  std::string pin;         // empty: no certificate has come yet
  std::string names;
};

}  // namespace torch_remote::transport
