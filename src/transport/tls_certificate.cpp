#include "transport/tls_certificate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <span>
#include <stdexcept>

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "base/text.h"

namespace torch_remote::transport {
namespace {

using Digest = std::array<unsigned char, 32>;

constexpr size_t kPinLength = 43;
constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* owned) const {
    Free(owned);
  }
};

using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES_free>>;

std::string encode(const Digest& digest) {
  std::string pin;
  unsigned bits = 0;
  int count = 0;
  for (const unsigned char byte : digest) {
    bits = bits << 8 | byte;
    for (count += 8; count >= 6; count -= 6)
      pin += kAlphabet[bits >> (count - 6) & 63];
  }
  return pin + kAlphabet[bits << (6 - count) & 63];
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
}

bool is_pin(std::string_view text) {
  return text.size() == kPinLength && text.find_first_not_of(kAlphabet) == std::string_view::npos;
}

void set_random_serial(X509* certificate) {
  std::array<unsigned char, 8> bytes{};
  check_internal(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1,
                 "OpenSSL has random bytes");
  uint64_t serial = 0;
  for (const unsigned char byte : bytes)
    serial = serial << 8 | byte;
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1 | 1);
}

void set_name(X509* certificate) {
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("torch-remote"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
}

std::span<const std::byte> bytes_of(const ASN1_STRING& text) {
  return std::as_bytes(
      std::span(ASN1_STRING_get0_data(&text), static_cast<size_t>(ASN1_STRING_length(&text))));
}

// Whoever made the certificate chose the bytes and their number.
std::string text_of(const GENERAL_NAME& name) {
  if (name.type == GEN_DNS)
    return readable_line(bytes_of(*name.d.dNSName));
  if (name.type != GEN_IPADD)
    return {};
  const auto address = bytes_of(*name.d.iPAddress);
  if (address.size() != sizeof(in_addr) && address.size() != sizeof(in6_addr))
    return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = address.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  ::inet_ntop(family, address.data(), text.data(), text.size());
  return text.data();
}

}  // namespace

std::string make_certificate() {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate(X509_new());
  check_internal(key && certificate, "OpenSSL makes a P-256 key");
  X509_set_version(certificate.get(), X509_VERSION_3);
  set_random_serial(certificate.get());
  ASN1_TIME_set_string(X509_getm_notBefore(certificate.get()), "20200101000000Z");
  ASN1_TIME_set_string(X509_getm_notAfter(certificate.get()), "99991231235959Z");
  set_name(certificate.get());
  X509_set_pubkey(certificate.get(), key.get());
  check_internal(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0,
                 "OpenSSL signs a certificate");
  const Bio text(BIO_new(BIO_s_mem()));
  const bool is_written =
      PEM_write_bio_PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1 &&
      PEM_write_bio_X509(text.get(), certificate.get()) == 1;
  check_internal(is_written, "OpenSSL writes PEM");
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(text.get(), &data));
  return {data, size};
}

std::string pin_of(const X509* certificate) {
  Digest digest{};
  unsigned length = 0;
  check_internal(X509_digest(certificate, EVP_sha256(), digest.data(), &length) == 1,
                 "OpenSSL computes the SHA-256 of a certificate");
  return encode(digest);
}

std::string parse_pin(std::string_view text) {
  if (is_pin(text))
    return std::string(text);
  std::string hex(text);
  hex.erase(std::remove(hex.begin(), hex.end(), ':'), hex.end());
  if (hex.size() != 2 * Digest().size() || !is_hex(hex)) {
    throw std::invalid_argument("'" + std::string(text) +
                                "' is not the pin of a certificate: a pin has 43 letters, digits, "
                                "- or _; write tls://host:port?pin=PIN as the server prints it "
                                "when it starts");
  }
  Digest digest{};
  for (size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return encode(digest);
}

std::string names_of(const X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string all;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::string name = text_of(*sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty())
      all += (all.empty() ? "" : ", ") + name;
  }
  return all.empty() ? "no host" : std::string(cut_text(all, 256));
}

}  // namespace torch_remote::transport
