#include "transport/client_hello.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

using Bytes = std::vector<std::byte>;

// As OpenSSL sends it.
Bytes client_hello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  BIO* const outgoing = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), outgoing);
  SSL_set_connect_state(ssl.get());
  SSL_do_handshake(ssl.get());
  Bytes bytes(BIO_ctrl_pending(outgoing));
  EXPECT_EQ(BIO_read(outgoing, bytes.data(), static_cast<int>(bytes.size())),
            static_cast<int>(bytes.size()));
  return bytes;
}

// The same message in records of so many bytes.
Bytes in_records(const Bytes& whole, size_t size) {
  Bytes bytes;
  for (size_t at = 5; at < whole.size(); at += size) {
    const size_t count = std::min(size, whole.size() - at);
    for (const size_t byte : {size_t{22}, size_t{3}, size_t{1}, count >> 8, count & 255})
      bytes.push_back(static_cast<std::byte>(byte));
    bytes.insert(bytes.end(), whole.begin() + static_cast<ptrdiff_t>(at),
                 whole.begin() + static_cast<ptrdiff_t>(at + count));
  }
  return bytes;
}

TEST(ClientHello, IsWholeWithItsLastByteAndNotBeforeInHoweverManyRecords) {
  const Bytes whole = client_hello();
  for (const Bytes& bytes : {whole, in_records(whole, 1), in_records(whole, 100)}) {
    for (size_t length = 0; length < bytes.size(); ++length)
      ASSERT_FALSE(holds_client_hello(std::span(bytes).first(length))) << length;
    EXPECT_TRUE(holds_client_hello(bytes));
  }
}

// Promise 2.
TEST(ClientHello, WhatIsNoneIsRefusedAsSoonAsItIsSeen) {
  for (const size_t at : {size_t{0}, size_t{1}, size_t{5}}) {
    Bytes bytes = client_hello();
    bytes[at] ^= std::byte{64};
    EXPECT_THROW(holds_client_hello(std::span(bytes).first(at + 1)), ProtocolError) << at;
  }
  Bytes empty_record = client_hello();
  empty_record[3] = empty_record[4] = std::byte{0};
  EXPECT_THROW(holds_client_hello(empty_record), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::transport
