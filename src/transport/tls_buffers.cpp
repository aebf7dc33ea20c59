#include "transport/tls_buffers.h"

#include <algorithm>
#include <cstring>

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

TlsBuffers& buffers_of(BIO* bio) {
  return *static_cast<TlsBuffers*>(BIO_get_data(bio));
}

int read_incoming(BIO* bio, char* into, size_t size, size_t* got) noexcept {
  std::span<const std::byte>& incoming = buffers_of(bio).incoming;
  BIO_clear_retry_flags(bio);
  *got = std::min(size, incoming.size());
  if (*got == 0) {
    BIO_set_retry_read(bio);
    return 0;
  }
  std::memcpy(into, incoming.data(), *got);
  incoming = incoming.subspan(*got);
  return 1;
}

int write_outgoing(BIO* bio, const char* from, size_t size, size_t* written) noexcept {
  BIO_clear_retry_flags(bio);
  *written = 0;
  try {
    const auto bytes = std::as_bytes(std::span(from, size));
    std::vector<std::byte>& outgoing = buffers_of(bio).outgoing;
    outgoing.insert(outgoing.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    return 0;
  }
  *written = size;
  return 1;
}

long control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// Never freed.
BIO_METHOD* method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "memory");
    check_internal(method != nullptr, "OpenSSL makes a kind of BIO");
    BIO_meth_set_read_ex(method, read_incoming);
    BIO_meth_set_write_ex(method, write_outgoing);
    BIO_meth_set_ctrl(method, control);
    return method;
  }();
  return made;
}

}  // namespace

void TlsBuffers::attach_to(SSL* ssl) {
  BIO* const bio = BIO_new(method());
  check_internal(bio != nullptr, "OpenSSL makes a BIO");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);  // the SSL object owns it
}

}  // namespace torch_remote::transport
