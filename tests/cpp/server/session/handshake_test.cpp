#include "server/session/handshake.h"

#include <array>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "transport/memory_stream.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

void send(transport::Stream& stream, std::span<const std::byte> bytes) {
  const std::array<std::span<const std::byte>, 1> parts = {bytes};
  stream.write(parts);
}

void send_block(transport::Stream& stream, const Bytes& body) {
  const auto length = static_cast<uint32_t>(body.size());
  send(stream, std::as_bytes(std::span(&length, 1)));
  send(stream, body);
}

void read_exactly(transport::Stream& stream, std::span<std::byte> into) {
  while (!into.empty()) {
    const size_t got = stream.read_some(into);
    ASSERT_GT(got, 0);
    into = into.subspan(got);
  }
}

Bytes read_block(transport::Stream& stream) {
  uint32_t length = 0;
  read_exactly(stream, std::as_writable_bytes(std::span(&length, 1)));
  Bytes body(length);
  read_exactly(stream, body);
  return body;
}

template <typename Message>
Bytes body_of(const Message& message) {
  wire::Writer writer;
  encode(writer, message);
  return writer.take();
}

// The body of the HELLO that was sent.
Bytes send_hello_as_client(transport::Stream& stream) {
  wire::Hello hello;
  hello.torch_version = "2.13.0";
  Bytes body = body_of(hello);
  send(stream, wire::encode_preamble({}));
  send_block(stream, body);
  return body;
}

// A client that does everything right, but for its token. The body of its PROOF comes back.
Bytes greet_as_client(transport::Stream& stream, const std::string& token) {
  const Bytes ours = send_hello_as_client(stream);
  wire::Hello theirs = wire::decode_hello(read_block(stream));
  theirs.has_proof = false;
  wire::ProofMessage proof;
  proof.has_proof = !token.empty();
  if (proof.has_proof)
    proof.proof = wire::make_proof(token, wire::Side::kClient, ours, body_of(theirs));
  Bytes body = body_of(proof);
  send_block(stream, body);
  return body;
}

class HandshakeTest : public testing::Test {
 protected:
  std::future<Greeting> serve(const std::string& token) {
    return std::async(std::launch::async,
                      [this, token] { return greet(*server, std::nullopt, proofs_with(token)); });
  }

  std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>> pair =
      transport::memory_pair();
  std::unique_ptr<transport::Stream>& client = pair.first;
  std::unique_ptr<transport::Stream>& server = pair.second;
};

TEST_F(HandshakeTest, TheRightTokenIsLetIn) {
  auto greeting = serve("a token of some length");
  greet_as_client(*client, "a token of some length");
  EXPECT_EQ(greeting.get().torch_version, "2.13.0");
}

TEST_F(HandshakeTest, NoTokenIsNeededWhereNoneIsWanted) {
  auto greeting = serve("");
  greet_as_client(*client, "");
  EXPECT_EQ(greeting.get().version, wire::kMaxVersion);
}

TEST_F(HandshakeTest, TheServerLearnsWhatTheClientCanDo) {
  auto greeting = serve("");
  greet_as_client(*client, "");
  EXPECT_EQ(greeting.get().capabilities, wire::kCapabilities);
}

TEST_F(HandshakeTest, AWrongTokenIsToldSo) {
  auto greeting = serve("a token of some length");
  greet_as_client(*client, "another token");
  const wire::Welcome welcome = wire::decode_welcome(read_block(*client));
  EXPECT_FALSE(welcome.ok());
  EXPECT_THAT(welcome.reason, HasSubstr("token is wrong"));
  EXPECT_THROW(greeting.get(), AuthenticationError);
}

// Promise 3.
TEST_F(HandshakeTest, AClientsOwnBytesSentAgainAreRefused) {
  auto first = serve("a token of some length");
  const Bytes proof = greet_as_client(*client, "a token of some length");
  first.get();

  pair = transport::memory_pair();
  auto second = serve("a token of some length");
  send_hello_as_client(*client);  // the same bytes: its nonce is all zeros
  read_block(*client);
  send_block(*client, proof);
  EXPECT_THAT(wire::decode_welcome(read_block(*client)).reason, HasSubstr("token is wrong"));
  EXPECT_THROW(second.get(), AuthenticationError);
}

TEST_F(HandshakeTest, NoTokenWhereOneIsWantedIsToldSo) {
  auto greeting = serve("a token of some length");
  greet_as_client(*client, "");
  EXPECT_THAT(wire::decode_welcome(read_block(*client)).reason, HasSubstr("wants a token"));
  EXPECT_THROW(greeting.get(), AuthenticationError);
}

// Promise 3.
TEST_F(HandshakeTest, TheServerProvesThatItKnowsTheTokenAndAClientThatThenLeavesHasNot) {
  auto greeting = serve("a token of some length");
  const Bytes ours = body_of(wire::Hello{});
  send(*client, wire::encode_preamble({}));
  send_block(*client, ours);
  wire::Hello theirs = wire::decode_hello(read_block(*client));
  ASSERT_TRUE(theirs.has_proof);
  const wire::Proof proof = theirs.proof;
  theirs.has_proof = false;
  EXPECT_TRUE(wire::equal_proofs(
      proof,
      wire::make_proof("a token of some length", wire::Side::kServer, ours, body_of(theirs))));
  client->shutdown();
  EXPECT_THROW(greeting.get(), AuthenticationError);
}

TEST_F(HandshakeTest, BytesBehindTheProofStayInTheStream) {
  auto greeting = serve("");
  greet_as_client(*client, "");
  send(*client, Bytes{std::byte{42}});
  greeting.get();
  Bytes next(1);
  read_exactly(*server, next);
  EXPECT_EQ(next[0], std::byte{42});
}

TEST_F(HandshakeTest, ResumingIsRefusedWithAReason) {
  auto greeting = serve("");
  wire::Preamble preamble;
  preamble.intent = 1;
  send(*client, wire::encode_preamble(preamble));
  EXPECT_THAT(wire::decode_welcome(read_block(*client)).reason, HasSubstr("resume"));
  EXPECT_THROW(greeting.get(), ProtocolError);
}

// Promise 2.
TEST_F(HandshakeTest, RubbishIsAProtocolError) {
  auto greeting = serve("");
  send(*client, Bytes(64, std::byte{'x'}));
  EXPECT_THROW(greeting.get(), ProtocolError);
}

// Promise 2.
TEST_F(HandshakeTest, ABlockLongerThanAHandshakeMayBeIsRefusedBeforeItIsRead) {
  auto greeting = serve("");
  send(*client, wire::encode_preamble({}));
  const uint32_t length = wire::kMaxHandshakeBytes;
  send(*client, std::as_bytes(std::span(&length, 1)));
  EXPECT_THROW(greeting.get(), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::server
