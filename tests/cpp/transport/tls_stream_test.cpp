// What only a stream with TLS does. tests/cpp/transport/stream_test.cpp runs over it too.
#include "transport/tls_stream.h"

#include <array>
#include <csignal>
#include <functional>
#include <future>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include "base/error.h"
#include "stream_pairs.h"
#include "tls_pair.h"
#include "transport/deadline.h"
#include "transport/tls_error.h"

namespace torch_remote::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_all(Stream& stream, std::span<const std::byte> bytes) {
  stream.write({&bytes, 1});
}

Bytes read_exactly(Stream& stream, size_t size) {
  Bytes bytes(size);
  for (size_t done = 0; done < size;) {
    const size_t got = stream.read_some(std::span(bytes).subspan(done));
    if (got == 0)
      throw ConnectionError("closed");
    done += got;
  }
  return bytes;
}

struct Outcome {
  std::string client;  // what each end threw; empty: nothing
  std::string server;
  bool client_is_setup = false;  // a TlsError
  bool server_is_setup = false;
};

std::string error_of(const std::function<void()>& action, bool& is_setup) {
  try {
    action();
    return {};
  } catch (const TlsError& error) {
    is_setup = true;
    return error.what();
  } catch (const ConnectionError& error) {
    return error.what();
  }
}

// Both handshakes, then a byte from the server to the client: in TLS 1.3 a client learns only then
// whether the server accepts its certificate.
Outcome shake_hands(const std::shared_ptr<const TlsContext>& client,
                    const std::shared_ptr<const TlsContext>& server) {
  StreamPair plain = tcp_pair();
  auto here = tls_stream(std::move(plain.first), client);
  auto there = tls_stream(std::move(plain.second), server);
  Outcome outcome;
  std::thread accepts([&] {
    outcome.server = error_of(
        [&] {
          there->secure({});
          write_all(*there, bytes_of("x"));
        },
        outcome.server_is_setup);
  });
  outcome.client = error_of(
      [&] {
        here->secure({});
        read_exactly(*here, 1);
      },
      outcome.client_is_setup);
  here->shutdown();
  accepts.join();
  return outcome;
}

TEST(TlsStream, TheRightPinIsAccepted) {
  const auto server = server_context();
  const Outcome outcome = shake_hands(TlsContext::client(pinned(server->own_pin())), server);
  EXPECT_EQ(outcome.client, "");
  EXPECT_EQ(outcome.server, "");
}

TEST(TlsStream, AnotherPinIsRefusedAndBothAreShown) {
  const auto server = server_context();
  const std::string wrong(43, 'A');
  const Outcome outcome = shake_hands(TlsContext::client(pinned(wrong)), server);
  EXPECT_TRUE(outcome.client_is_setup);
  EXPECT_THAT(outcome.client,
              AllOf(HasSubstr("pin=" + wrong), HasSubstr("pin=" + server->own_pin())));
  EXPECT_TRUE(outcome.server_is_setup);
  EXPECT_THAT(outcome.server, HasSubstr("refuses this side's certificate"));
}

TEST(TlsStream, ACertificateThatNobodyKnowsIsRefusedWithoutAPin) {
  const Outcome outcome = shake_hands(TlsContext::client(pinned("")), server_context());
  EXPECT_TRUE(outcome.client_is_setup);
  EXPECT_THAT(outcome.client, AllOf(HasSubstr("no authority"), HasSubstr("?pin=PIN")));
}

TEST(TlsStream, BothEndsHaveTheSameChannelBindingAndTwoConnectionsDifferent) {
  const StreamPair one = secured(tcp_pair());
  const StreamPair other = secured(tcp_pair());
  const auto binding = [](const Stream& stream) {
    return Bytes(stream.channel_binding().begin(), stream.channel_binding().end());
  };
  EXPECT_EQ(binding(*one.first).size(), 32U);
  EXPECT_EQ(binding(*one.first), binding(*one.second));
  EXPECT_NE(binding(*one.first), binding(*other.first));
  EXPECT_TRUE(tcp_pair().first->channel_binding().empty());
}

TEST(TlsStream, ThePreambleIsSentInTheClearBeforeTls) {
  StreamPair plain = tcp_pair();
  auto client =
      tls_stream(std::move(plain.first), TlsContext::client(pinned(std::string(43, 'A'))));
  std::thread connects(
      [&] { EXPECT_THROW(client->secure(bytes_of("preamble")), ConnectionError); });
  EXPECT_EQ(read_exactly(*plain.second, 8), bytes_of("preamble"));
  EXPECT_EQ(read_exactly(*plain.second, 2), (Bytes{std::byte{0x16}, std::byte{3}}));
  plain.second.reset();
  connects.join();
}

TEST(TlsStream, AServerTellsAClientWithoutTlsSoInTheClear) {
  StreamPair plain = tcp_pair();
  TlsOptions options;
  options.if_plain = bytes_of("speak TLS");
  auto server = tls_stream(std::move(plain.second), server_context(), options);
  write_all(*plain.first, bytes_of("hello, who is there?"));
  bool is_setup = false;
  const std::string error = error_of([&] { server->secure({}); }, is_setup);
  EXPECT_TRUE(is_setup);
  EXPECT_THAT(error, HasSubstr("does not speak TLS"));
  EXPECT_EQ(read_exactly(*plain.first, 9), bytes_of("speak TLS"));
}

TEST(TlsStream, AClientIsToldThatThereIsNoTls) {
  for (const char* answer : {"SSH-2.0-x\r\n", "HTTP/1.1 400 Bad Request\r\n", "\x20\0\0\0"}) {
    StreamPair plain = tcp_pair();
    auto client = tls_stream(std::move(plain.first), TlsContext::client(pinned("")));
    write_all(*plain.second, bytes_of(answer));
    bool is_setup = false;
    const std::string error = error_of([&] { client->secure({}); }, is_setup);
    EXPECT_TRUE(is_setup) << answer;
    EXPECT_THAT(error, AllOf(HasSubstr("no TLS is spoken there"), HasSubstr("tcp://")));
  }
}

// Promise 2.
TEST(TlsStream, APeerThatSendsTooMuchBeforeTheHandshakeIsOverIsLeft) {
  StreamPair plain = tcp_pair();
  auto server = tls_stream(std::move(plain.second), server_context());
  std::thread floods([&] {
    // A record that says it has 16 KiB of a ClientHello of 100 KiB, again and again.
    Bytes record(5 + (16 << 10), std::byte{0});
    const Bytes head = {std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{0x40},
                        std::byte{0},    std::byte{1}, std::byte{1}, std::byte{0x80}};
    std::copy(head.begin(), head.end(), record.begin());
    try {
      for (int i = 0; i < 100; ++i)
        write_all(*plain.first, record);
    } catch (const ConnectionError&) {
    }
  });
  EXPECT_THROW(server->secure({}), ConnectionError);
  server.reset();
  floods.join();
}

TEST(TlsStream, ShutdownEndsAHandshake) {
  StreamPair plain = tcp_pair();
  auto server = tls_stream(std::move(plain.second), server_context());
  std::thread waits([&] { EXPECT_THROW(server->secure({}), ConnectionError); });
  server->shutdown();
  waits.join();
}

TEST(TlsStream, KeysAreChangedWhileBothEndsSend) {
  TlsOptions options;
  options.rekey_after = 50'000;
  const StreamPair pair = secured(tcp_pair(), options);
  Bytes sent(1'000'000);
  for (size_t i = 0; i < sent.size(); ++i)
    sent[i] = static_cast<std::byte>(i * 7 + i / 1000);
  std::thread there([&] { write_all(*pair.first, sent); });
  std::thread back([&] { write_all(*pair.second, sent); });
  auto received =
      std::async(std::launch::async, [&] { return read_exactly(*pair.second, sent.size()); });
  EXPECT_TRUE(read_exactly(*pair.first, sent.size()) == sent);
  EXPECT_TRUE(received.get() == sent);
  there.join();
  back.join();
}

TEST(TlsStream, APeerThatAsksForNewKeysWithoutEndIsLeft) {
  const auto context = server_context();
  const auto client_context = TlsContext::client(pinned(context->own_pin()));
  auto [ours, theirs] = socket_pair();
  auto server = tls_stream(socket_stream(std::move(theirs), "client"), context);
  SeenCertificate seen;
  seen.wanted_pin = context->own_pin();
  SSL* const client = SSL_new(client_context->get());
  SSL_set_app_data(client, &seen);
  SSL_set_fd(client, ours.get());
  std::thread asks([&, socket = ours.get()] {
    // Once the server has closed the socket, a write by OpenSSL raises SIGPIPE, which would end the
    // process. This thread blocks it.
    sigset_t sigpipe;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
    if (SSL_connect(client) != 1)
      return;
    // Reads no answers; the server sends none before it has something to say.
    while (SSL_key_update(client, SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(client) == 1) {
    }
    ::shutdown(socket, SHUT_RDWR);
  });
  server->secure({});
  bool is_setup = false;
  EXPECT_THAT(error_of([&] { read_exactly(*server, 1); }, is_setup), HasSubstr("new keys"));
  server.reset();
  asks.join();
  SSL_free(client);
}

// Passes bytes on, and changes one bit of the byte with this number.
class Flipping : public Stream {
 public:
  Flipping(std::unique_ptr<Stream> inner, size_t at) : inner_(std::move(inner)), left_(at) {}

  size_t read_some(std::span<std::byte> into) override { return inner_->read_some(into); }

  void write(std::span<const std::span<const std::byte>> parts) override {
    Bytes bytes;
    for (const auto part : parts)
      bytes.insert(bytes.end(), part.begin(), part.end());
    if (left_ < bytes.size())
      bytes[left_] ^= std::byte{4};
    left_ = left_ < bytes.size() ? SIZE_MAX : left_ - bytes.size();
    const std::span<const std::byte> changed = bytes;
    inner_->write({&changed, 1});
  }

  void shutdown() noexcept override { inner_->shutdown(); }

  std::string peer() const override { return inner_->peer(); }

 private:
  std::unique_ptr<Stream> inner_;
  size_t left_;
};

// Whether the server got exactly what the client sent, with one bit changed on the way.
bool arrives_in_spite_of_a_flip(size_t at, const std::shared_ptr<const TlsContext>& client_context,
                                const std::shared_ptr<const TlsContext>& context, bool& is_wrong) {
  StreamPair plain = memory_pair();
  auto client = tls_stream(std::make_unique<Flipping>(std::move(plain.first), at), client_context);
  auto server = tls_stream(std::move(plain.second), context);
  // A flip in a length can make one end wait for more.
  const Deadline for_client(*client, std::chrono::milliseconds(300));
  const Deadline for_server(*server, std::chrono::milliseconds(300));
  const Bytes sent(300, std::byte{'a'});
  std::thread sends([&] {
    bool unused = false;
    const std::string failed = error_of(
        [&] {
          client->secure({});
          write_all(*client, sent);
        },
        unused);
    if (!failed.empty())
      client->shutdown();
  });
  Bytes got;
  bool unused = false;
  const std::string failed = error_of(
      [&] {
        server->secure({});
        got = read_exactly(*server, sent.size());
      },
      unused);
  server->shutdown();
  sends.join();
  is_wrong = failed.empty() && got != sent;
  return failed.empty();
}

// Promise 3a.
TEST(TlsStream, ABitThatIsFlippedAnywhereIsNoticed) {
  const auto server = server_context();
  const auto client = TlsContext::client(pinned(server->own_pin()));
  size_t arrived = 0;
  for (size_t at = 0; at < 900; at += 7) {
    bool is_wrong = false;
    arrived += arrives_in_spite_of_a_flip(at, client, server, is_wrong) ? 1U : 0U;
    ASSERT_FALSE(is_wrong) << "byte " << at;
  }
  // In the clear there are bytes that mean nothing, such as the version of a record. And the
  // client sends fewer than 900 bytes.
  EXPECT_LT(arrived, 60U);
}

TEST(TlsContext, WhatCannotBeUsedIsRefusedWithTheFile) {
  const auto message = [](const std::string& url) -> std::string {
    try {
      TlsContext::client(parse_address(url));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_THAT(message("tls://host:1?cert=/is/not/there"),
              HasSubstr("'/is/not/there': No such file or directory"));
  EXPECT_THAT(message("tls://host:1?ca=/is/not/there"), HasSubstr("'/is/not/there'"));
  EXPECT_THAT(message("tls://host:1?key=/is/not/there"), HasSubstr("key= needs cert="));
  EXPECT_THAT(message("tls://host:1?pin=short"), HasSubstr("'short' is not the pin"));
}

// A name of a certificate: what OpenSSL keeps, whatever it is.
void add_name(GENERAL_NAMES* names, int type, std::string_view bytes) {
  GENERAL_NAME* const name = GENERAL_NAME_new();
  ASN1_STRING* const value =
      ASN1_STRING_type_new(type == GEN_DNS ? V_ASN1_IA5STRING : V_ASN1_OCTET_STRING);
  ASN1_STRING_set(value, bytes.data(), static_cast<int>(bytes.size()));
  GENERAL_NAME_set0_value(name, type, value);
  sk_GENERAL_NAME_push(names, name);
}

// Promise 13a.
TEST(TlsCertificate, NamesOfAStrangersCertificateAreReadWithinTheirLengthAndPrintable) {
  GENERAL_NAMES* const names = GENERAL_NAMES_new();
  add_name(names, GEN_DNS, "a\x1b[2J\x9b\n.example");
  for (const std::string_view wrong : {"", "\x7f", "\x7f\x01\x01", "0123456789abcde"})
    add_name(names, GEN_IPADD, wrong);
  add_name(names, GEN_IPADD, std::string_view("\x7f\0\0\x01", 4));
  add_name(names, GEN_IPADD, std::string(15, '\0') + '\x01');
  X509* const certificate = X509_new();
  X509_add1_ext_i2d(certificate, NID_subject_alt_name, names, 0, 0);
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(names_of(certificate), "a" + bad + "[2J" + bad + bad + ".example, 127.0.0.1, ::1");
  X509_free(certificate);
  GENERAL_NAMES_free(names);
}

TEST(TlsCertificate, APinMayBeHexadecimalWithColons) {
  std::string hex;
  for (int i = 0; i < 32; ++i)
    hex += (i == 0 ? "" : ":") + std::string("ff");
  EXPECT_EQ(parse_pin(hex), std::string(42, '_') + "8");
  EXPECT_EQ(parse_pin(std::string(42, '_') + "8"), std::string(42, '_') + "8");
  EXPECT_THROW(parse_pin(hex + "ff"), std::invalid_argument);
}

}  // namespace
}  // namespace torch_remote::transport
