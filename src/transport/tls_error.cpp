#include "transport/tls_error.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "transport/client_hello.h"

namespace torch_remote::transport {
namespace {

constexpr std::byte kAlertRecord{21};

const char* const kTakePrinted =
    "connect to the address that the server prints when it starts, which ends in ?pin=PIN";

std::string describe_certificate(long verdict, const TlsContext& context,
                                 const SeenCertificate& seen) {
  const std::string openssl = X509_verify_cert_error_string(verdict);
  switch (verdict) {
    case X509_V_ERR_CERT_REJECTED:
      return "the server's certificate is not the pinned one: the address has pin=" +
             seen.wanted_pin + ", the server has pin=" + seen.pin +
             "; somebody else may be answering in its place, unless it was given a new "
             "certificate: then " +
             kTakePrinted;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "the server's certificate is for " + seen.names + ", not for " + context.host() +
             "; connect by a name that it has, or add its pin to the address (?pin=PIN)";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "the server's certificate has expired; renew it on the server, or add its pin to the "
             "address (?pin=PIN)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "the server's certificate is not valid yet; check the clocks of both machines";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return "no authority that this system trusts has signed the server's certificate (" +
             openssl + "); " + kTakePrinted + ", or name the authority's file with ca=FILE";
    default:
      return "the server's certificate is refused: " + openssl;
  }
}

// The reasons of errors that another set-up mends. Damaged bytes give other reasons.
std::string describe_setup(int reason) {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "the server wants a certificate of this client (--client-ca); add cert=FILE and "
             "key=FILE to the address";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
      return "the peer refuses this side's certificate";
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "the client has no certificate, and --client-ca wants one";
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return "the client's certificate is refused";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return "the peer has no TLS 1.3";
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_NO_SHARED_CIPHER:
      return "the two ends have no common cipher";
    default:
      return {};
  }
}

}  // namespace

bool looks_like_tls(std::span<const std::byte> first) {
  return !first.empty() && (first[0] == kHandshakeRecord || first[0] == kAlertRecord) &&
         (first.size() < 2 || first[1] == kMajorVersion);
}

void throw_no_tls(const TlsContext& context) {
  if (context.is_server())
    throw TlsError("the client does not speak TLS; it must connect to tls://, not to tcp://");
  throw TlsError(
      "no TLS is spoken there; if it is a torch-remote server without TLS, connect to tcp:// in "
      "place of tls://");
}

void throw_tls_failure(const SSL* ssl, const TlsContext& context, const SeenCertificate& seen,
                       const std::string& doing) {
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  const long verdict = SSL_get_verify_result(ssl);
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && !context.is_server())
    throw TlsError(describe_certificate(verdict, context, seen));
  const char* const openssl = ERR_reason_error_string(error);
  std::string why = openssl == nullptr ? "unknown error" : openssl;
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
    why = X509_verify_cert_error_string(verdict);
  if (const std::string setup = describe_setup(reason); !setup.empty())
    throw TlsError(setup + " (" + why + ")");
  throw ConnectionError(doing + ": TLS: " + why);
}

}  // namespace torch_remote::transport
