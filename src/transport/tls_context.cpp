#include "transport/tls_context.h"

#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "base/error.h"
#include "transport/tls_certificate.h"

namespace torch_remote::transport {
namespace {

// A client's certificate chain, as a server takes it.
constexpr long kMaxClientChain = 12 << 10;

// After a function of OpenSSL has failed; the first of its errors is the cause.
[[noreturn]] void refuse_file(const char* what, const std::string& file) {
  const std::string doing = std::string("TLS: cannot use ") + what + " '" + file + "'";
  const unsigned long error = ERR_peek_error();
  if (ERR_SYSTEM_ERROR(error))
    throw std::invalid_argument(describe_errno(doing, ERR_GET_REASON(error)));
  const char* const reason = ERR_reason_error_string(error);
  throw std::invalid_argument(doing + ": " + (reason == nullptr ? "unknown error" : reason));
}

// OpenSSL says "unsupported" of a file without a key, and "no start line" of one without a
// certificate. `label` ends the line that begins it.
void refuse_file_without(const char* label, const char* what, const std::string& file,
                         const char* advice) {
  std::ifstream opened(file);
  for (std::string line; std::getline(opened, line);)
    if (line.starts_with("-----BEGIN ") && line.find(label) != std::string::npos)
      return;
  if (!opened.eof())
    return;  // it cannot be read, which OpenSSL says
  throw std::invalid_argument("TLS: there is no " + std::string(what) + " in '" + file +
                              "': " + advice);
}

// Called with the server's chain in the place of OpenSSL's own check. The server proves afterwards
// that it has the certificate's key; that check is always OpenSSL's.
int check_server(X509_STORE_CTX* chain, void* /*unused*/) noexcept {
  auto* const ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const seen = static_cast<SeenCertificate*>(SSL_get_app_data(ssl));
  try {
    const X509* const certificate = X509_STORE_CTX_get0_cert(chain);
    seen->pin = pin_of(certificate);
    seen->names = names_of(certificate);
  } catch (const std::exception&) {
    X509_STORE_CTX_set_error(chain, X509_V_ERR_OUT_OF_MEM);
    return 0;
  }
  if (seen->wanted_pin.empty())
    return X509_verify_cert(chain) == 1 ? 1 : 0;
  const bool is_right = seen->pin == seen->wanted_pin;
  X509_STORE_CTX_set_error(chain, is_right ? X509_V_OK : X509_V_ERR_CERT_REJECTED);
  return is_right ? 1 : 0;
}

}  // namespace

TlsContext::TlsContext(bool is_server)
    : context_(SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method())),
      is_server_(is_server) {
  check_internal(context_ != nullptr, "OpenSSL makes a TLS context");
  SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
  // No tickets: every connection has a handshake of its own, and a server that is closed with
  // unread tickets at the client would reset the connection.
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context_, 0);
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
}

void TlsContext::use_identity(const std::string& cert, const std::string& key) {
  refuse_file_without("CERTIFICATE-----", "certificate", cert, "it is a PEM file that has one");
  const std::string& key_file = key.empty() ? cert : key;
  refuse_file_without("PRIVATE KEY-----", "private key", key_file,
                      is_server_ ? "name the PEM file that has it with --key"
                                 : "name the PEM file that has it with key=FILE in the address");
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context_, cert.c_str()) != 1)
    refuse_file("the certificate", cert);
  if (SSL_CTX_use_PrivateKey_file(context_, key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context_) != 1)
    refuse_file("the key", key_file);
}

std::shared_ptr<const TlsContext> TlsContext::client(const Address& address) {
  const std::shared_ptr<TlsContext> made(new TlsContext(false));
  made->host_ = address.host;
  if (!address.pin.empty())
    made->pin_ = parse_pin(address.pin);
  else if (address.ca.empty())
    SSL_CTX_set_default_verify_paths(made->context_);
  ERR_clear_error();
  if (!address.ca.empty() && SSL_CTX_load_verify_file(made->context_, address.ca.c_str()) != 1)
    refuse_file("the certificate authority", address.ca);
  if (!address.cert.empty())
    made->use_identity(address.cert, address.key);
  else if (!address.key.empty())
    throw std::invalid_argument("TLS: key= needs cert=, the client's certificate");
  SSL_CTX_set_verify(made->context_, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(made->context_, check_server, nullptr);
  return made;
}

std::shared_ptr<const TlsContext> TlsContext::server(const std::string& cert,
                                                     const std::string& key,
                                                     const std::string& client_ca) {
  const std::shared_ptr<TlsContext> made(new TlsContext(true));
  made->use_identity(cert, key);
  made->pin_ = pin_of(SSL_CTX_get0_certificate(made->context_));
  if (client_ca.empty())
    return made;
  ERR_clear_error();
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(client_ca.c_str());
  if (names == nullptr || SSL_CTX_load_verify_file(made->context_, client_ca.c_str()) != 1)
    refuse_file("the certificate authority of clients", client_ca);
  SSL_CTX_set_client_CA_list(made->context_, names);
  SSL_CTX_set_max_cert_list(made->context_, kMaxClientChain);
  SSL_CTX_set_verify(made->context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return made;
}

std::shared_ptr<const TlsContext> TlsContext::server_with(const std::string& pem) {
  const std::shared_ptr<TlsContext> made(new TlsContext(true));
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(text.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), X509_free);
  check_internal(SSL_CTX_use_certificate(made->context_, certificate.get()) == 1 &&
                     SSL_CTX_use_PrivateKey(made->context_, key.get()) == 1,
                 "OpenSSL takes a certificate of our own");
  made->pin_ = pin_of(certificate.get());
  return made;
}

}  // namespace torch_remote::transport
