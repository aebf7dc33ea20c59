#include "transport/tls_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "base/mutex.h"
#include "transport/tls_buffers.h"
#include "transport/tls_error.h"

namespace torch_remote::transport {
namespace {

constexpr size_t kRecord = 16 << 10;          // the most that TLS puts into a record
constexpr size_t kBurst = 4 * kRecord;        // encrypted with the mutex held
constexpr size_t kBatch = size_t{256} << 10;  // sent at once
constexpr size_t kIncoming = size_t{256} << 10;
constexpr size_t kHandshakeRead = 4 << 10;
// OpenSSL answers each request for new keys. A peer that asks without end, even before it is
// authenticated, must not make the answers fill the memory. What a write encrypts stays far below.
constexpr size_t kMostUnsent = size_t{512} << 10;
// What a peer may send in a TLS handshake. A server's certificates may be many.
constexpr size_t kMaxFromClient = 16 << 10;
constexpr size_t kMaxFromServer = 64 << 10;

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

bool is_ip_address(const std::string& host) {
  ASN1_OCTET_STRING* const address = a2i_IPADDRESS(host.c_str());
  ASN1_OCTET_STRING_free(address);
  return address != nullptr;
}

// SNI and the check of the certificate's name.
void expect_host(SSL* ssl, const std::string& host) {
  if (is_ip_address(host)) {
    check_internal(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1,
                   "OpenSSL takes the address to check the certificate against");
    return;
  }
  check_internal(SSL_set_tlsext_host_name(ssl, host.c_str()) == 1, "OpenSSL sends the host's name");
  check_internal(SSL_set1_host(ssl, host.c_str()) == 1,
                 "OpenSSL takes the name to check the certificate against");
}

// Thread-safe as Stream requires: Note [TLS streams].
class TlsStream : public Stream {
 public:
  TlsStream(std::unique_ptr<Stream> inner, std::shared_ptr<const TlsContext> context,
            TlsOptions options)
      : inner_(std::move(inner)),
        context_(std::move(context)),
        options_(std::move(options)),
        raw_(kIncoming),
        ssl_(SSL_new(context_->get())) {
    check_internal(ssl_ != nullptr, "OpenSSL makes an object for a connection");
    buffers_.attach_to(ssl_.get());
    seen_.wanted_pin = context_->is_server() ? "" : context_->wanted_pin();
    SSL_set_app_data(ssl_.get(), &seen_);
    if (context_->is_server()) {
      SSL_set_accept_state(ssl_.get());
      return;
    }
    SSL_set_connect_state(ssl_.get());
    if (seen_.wanted_pin.empty())
      expect_host(ssl_.get(), context_->host());
  }

  void secure(std::span<const std::byte> preamble) override EXCLUDES(mutex_) {
    if (!preamble.empty()) {  // sent together with the first bytes of TLS
      MutexLock lock(mutex_);
      buffers_.outgoing.assign(preamble.begin(), preamble.end());
    }
    size_t received = 0;
    bool is_done = advance_handshake();
    if (options_.read_words)
      is_done = begin_after_words(received);
    for (; !is_done; is_done = advance_handshake())
      receive_handshake(received);
    MutexLock lock(mutex_);
    constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";  // RFC 9266
    check_internal(SSL_export_keying_material(
                       ssl_.get(), reinterpret_cast<unsigned char*>(binding_.data()),
                       binding_.size(), kLabel.data(), kLabel.size(), nullptr, 0, 1) == 1,
                   "OpenSSL exports keying material");
    is_secure_ = true;
  }

  std::span<const std::byte> channel_binding() const override {
    return is_secure_ ? std::span<const std::byte>(binding_) : std::span<const std::byte>();
  }

  size_t read_some(std::span<std::byte> into) override EXCLUDES(mutex_) {
    for (size_t got = 0;;) {
      if (decrypt(into, got))
        return got;
      const size_t received = inner_->read_some(raw_);
      if (received == 0)
        return 0;
      MutexLock lock(mutex_);
      buffers_.incoming = std::span<const std::byte>(raw_).first(received);
    }
  }

  // Small parts share a record; large ones are encrypted from where they are.
  void write(std::span<const std::span<const std::byte>> parts) override EXCLUDES(mutex_) {
    size_t staged = 0;
    for (std::span<const std::byte> part : parts) {
      while (!part.empty()) {
        size_t taken = part.size();
        if (staged == 0 && taken >= kRecord) {
          taken = std::min(taken - taken % kRecord, kBurst);
          encrypt(part.first(taken));
        } else {
          taken = std::min(taken, kRecord - staged);
          std::memcpy(record_.data() + staged, part.data(), taken);
          staged += taken;
        }
        part = part.subspan(taken);
        if (staged == kRecord)
          encrypt(std::span(record_).first(std::exchange(staged, 0)));
      }
    }
    if (staged > 0)
      encrypt(std::span(record_).first(staged));
    send_encrypted(0);
  }

  void shutdown() noexcept override { inner_->shutdown(); }

  std::string peer() const override { return inner_->peer(); }

  void close_in_forked_child() noexcept override { inner_->close_in_forked_child(); }

 private:
  // False: more bytes of the peer are needed.
  bool advance_handshake() EXCLUDES(mutex_) {
    std::exception_ptr failure;
    bool is_done = false;
    {
      MutexLock lock(mutex_);
      ERR_clear_error();
      const int result = SSL_do_handshake(ssl_.get());
      is_done = result == 1;
      if (!is_done && SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ)
        failure = make_failure("the TLS handshake with ");
    }
    if (failure != nullptr) {
      send_alert();
      std::rethrow_exception(failure);
    }
    send_encrypted(0);
    return is_done;
  }

  // As advance_handshake().
  bool begin_after_words(size_t& received) EXCLUDES(mutex_) {
    const std::vector<std::byte> first = options_.read_words(*inner_);
    check_internal(first.size() <= raw_.size(), "few bytes are read with the listener's words");
    std::ranges::copy(first, raw_.begin());
    take_handshake(first.size(), received);
    return advance_handshake();
  }

  void receive_handshake(size_t& received) EXCLUDES(mutex_) {
    take_handshake(inner_->read_some(std::span(raw_).first(kHandshakeRead)), received);
  }

  // So many bytes of raw_.
  void take_handshake(size_t got, size_t& received) EXCLUDES(mutex_) {
    const size_t most = context_->is_server() ? kMaxFromClient : kMaxFromServer;
    const std::span<const std::byte> bytes = std::span<const std::byte>(raw_).first(got);
    if (got == 0)
      throw ConnectionError(peer() + " closed the connection during the TLS handshake");
    if (received == 0 && !looks_like_tls(bytes))
      refuse_plain();
    received += got;
    if (received > most) {
      throw ConnectionError(peer() + " sent more than " + std::to_string(most) +
                            " bytes in the TLS handshake");
    }
    MutexLock lock(mutex_);
    buffers_.incoming = bytes;
  }

  [[noreturn]] void refuse_plain() {
    try {
      const std::span<const std::byte> answer = options_.if_plain;
      inner_->write({&answer, 1});
    } catch (const ConnectionError&) {
      // The peer has left.
    }
    throw_no_tls(*context_);
  }

  // Tells the peer why the handshake has failed.
  void send_alert() noexcept {
    try {
      send_encrypted(0);
    } catch (const ConnectionError&) {
      // The peer has left.
    }
  }

  std::exception_ptr make_failure(const char* doing) const REQUIRES(mutex_) {
    try {
      throw_tls_failure(ssl_.get(), *context_, seen_, doing + peer());
    } catch (...) {
      return std::current_exception();
    }
  }

  // False: more bytes of the peer are needed. Sets `got` to 0 when the peer has ended TLS.
  bool decrypt(std::span<std::byte> into, size_t& got) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ERR_clear_error();
    got = 0;
    const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &got);
    if (buffers_.outgoing.size() > kMostUnsent)
      throw ConnectionError(peer() + " asks for new keys too often");
    if (result == 1)
      return true;
    const int error = SSL_get_error(ssl_.get(), 0);
    if (error == SSL_ERROR_WANT_READ)
      return false;
    if (error == SSL_ERROR_ZERO_RETURN)
      return true;
    std::rethrow_exception(make_failure("reading from "));
  }

  void encrypt(std::span<const std::byte> bytes) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ERR_clear_error();
      size_t written = 0;
      if (SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) != 1)
        std::rethrow_exception(make_failure("writing to "));
      since_rekey_ += written;
      if (since_rekey_ >= options_.rekey_after) {
        since_rekey_ = 0;
        SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
      }
    }
    send_encrypted(kBatch);
  }

  // Sends what is encrypted, if it is at least that much.
  void send_encrypted(size_t at_least) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (buffers_.outgoing.empty() || buffers_.outgoing.size() < at_least)
        return;
      sending_.clear();
      std::swap(sending_, buffers_.outgoing);
    }
    const std::span<const std::byte> bytes = sending_;
    inner_->write({&bytes, 1});
  }

  // Constant after construction.
  const std::unique_ptr<Stream> inner_;
  const std::shared_ptr<const TlsContext> context_;
  const TlsOptions options_;

  // Set by secure().
  std::array<std::byte, 32> binding_{};
  bool is_secure_ = false;

  // Of the reading thread.
  std::vector<std::byte> raw_;  // buffers_.incoming is a part of it

  // Of the writing thread.
  std::array<std::byte, kRecord> record_;
  std::vector<std::byte> sending_;

  Mutex mutex_;
  SeenCertificate seen_ GUARDED_BY(mutex_);
  TlsBuffers buffers_ GUARDED_BY(mutex_);
  uint64_t since_rekey_ GUARDED_BY(mutex_) = 0;
  const std::unique_ptr<SSL, FreeSsl> ssl_;  // its functions are called with mutex_ held
};

}  // namespace

std::unique_ptr<Stream> tls_stream(std::unique_ptr<Stream> inner,
                                   std::shared_ptr<const TlsContext> context, TlsOptions options) {
  return std::make_unique<TlsStream>(std::move(inner), std::move(context), std::move(options));
}

}  // namespace torch_remote::transport
