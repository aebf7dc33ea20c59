#pragma once

#include <string>
#include <string_view>

#include <openssl/types.h>

namespace torch_remote::transport {

// A new P-256 key and a certificate that it signed itself, as PEM, the key first. The certificate
// names no host and does not expire: a client recognises it by its pin.
std::string make_certificate();

// What a client pins: the SHA-256 of a certificate in URL-safe base64, 43 characters.
std::string pin_of(const X509* certificate);
// A pin as pin_of() writes it, from that form or from 64 hexadecimal digits, which `openssl x509
// -fingerprint -sha256` prints with colons between them. Throws std::invalid_argument.
std::string parse_pin(std::string_view text);

// The host names and addresses for which the certificate is valid, for messages. Anybody may have
// made it: nothing else in it counts, and a terminal obeys none of its names.
std::string names_of(const X509* certificate);

}  // namespace torch_remote::transport
