#include "client/link/handshake.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "client/fake_server.h"
#include "transport/memory_stream.h"
#include "wire/limits.h"

namespace torch_remote::client::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kToken = "a token of some length";

class HandshakeTest : public ::testing::Test {
 protected:
  ~HandshakeTest() override { server->shutdown(); }  // wakes a client that still waits

  std::future<wire::Welcome> connect(const std::string& token) {
    return std::async(std::launch::async, [this, token] { return shake_hands(*client, token); });
  }

  template <typename Error>
  static std::string error_of(std::future<wire::Welcome>& handshake) {
    try {
      handshake.get();
    } catch (const Error& error) {
      return error.what();
    }
    return "(no error)";
  }

  std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>> pair =
      transport::memory_pair();
  std::unique_ptr<transport::Stream>& client = pair.first;
  std::unique_ptr<transport::Stream>& server = pair.second;
};

TEST_F(HandshakeTest, AServerThatWantsNoTokenLetsItIn) {
  auto handshake = connect("");
  let_in(*server);
  const wire::Welcome welcome = handshake.get();
  EXPECT_EQ(welcome.host, "fake-host");
  EXPECT_EQ(welcome.devices.size(), 1);
}

TEST_F(HandshakeTest, WithTheRightTokenBothSidesProveThatTheyKnowIt) {
  auto handshake = connect(kToken);
  const Bytes theirs = read_client_hello(*server);
  wire::Hello hello = server_hello(kToken, theirs);
  send_block(*server, body_of(hello));
  const wire::ProofMessage proof = wire::decode_proof(read_block(*server));
  send_block(*server, body_of(a_welcome()));
  hello.has_proof = false;

  EXPECT_TRUE(handshake.get().ok());
  ASSERT_TRUE(proof.has_proof);
  EXPECT_TRUE(wire::equal_proofs(
      proof.proof, wire::make_proof(kToken, wire::Side::kClient, theirs, body_of(hello))));
}

// Else strangers who know the session's id could take its place among the handshakes.
// Promise 2.
TEST_F(HandshakeTest, AClientThatResumesShowsTheProofOfItsRouteToAServerThatKnowsIt) {
  const Ticket ticket{"1a2b3c4d", {}, ""};
  for (const uint64_t capabilities : {wire::kRouteProofCapability, uint64_t{0}}) {
    auto [ours, theirs] = transport::memory_pair();
    auto resuming = std::async(std::launch::async, [&, &stream = *ours] {
      shake_hands_again(stream, ticket, capabilities, 0, kPatience);
    });
    const Bytes bytes = read_exactly(*theirs, wire::kPreambleBytes);
    theirs->shutdown();
    EXPECT_THROW(resuming.get(), ConnectionError);
    const wire::Preamble preamble =
        wire::decode_preamble(std::span<const std::byte, wire::kPreambleBytes>(bytes));
    const uint64_t proof = wire::route_proof(wire::resume_key(ticket.secret, ticket.token));
    EXPECT_EQ(preamble.route_proof, capabilities == 0 ? 0 : proof);
  }
}

// Promise 3.
TEST_F(HandshakeTest, TwoHandshakesHaveDifferentNonces) {
  auto handshake = connect("");
  const wire::Hello one = wire::decode_hello(read_client_hello(*server));
  server->shutdown();
  EXPECT_THROW(handshake.get(), ConnectionError);
  auto again = transport::memory_pair();
  auto second = std::async(std::launch::async, [&] { return shake_hands(*again.first, ""); });
  const wire::Hello two = wire::decode_hello(read_client_hello(*again.second));
  again.second->shutdown();
  EXPECT_THROW(second.get(), ConnectionError);
  EXPECT_NE(one.nonce, two.nonce);
}

// Promise 3.
TEST_F(HandshakeTest, AServerThatProvesAnotherTokenGetsNoProof) {
  auto handshake = connect(kToken);
  send_block(*server, body_of(server_hello("another token", read_client_hello(*server))));
  EXPECT_THAT(error_of<ConnectionError>(handshake), HasSubstr("does not know this token"));
  client->shutdown();
  EXPECT_THROW(read_exactly(*server, 1), ConnectionError);
}

TEST_F(HandshakeTest, AServerThatProvesNothingGetsNoProof) {
  auto handshake = connect(kToken);
  send_block(*server, body_of(server_hello("", read_client_hello(*server))));
  EXPECT_THAT(error_of<ConnectionError>(handshake), HasSubstr("does not prove"));
  client->shutdown();
  EXPECT_THROW(read_exactly(*server, 1), ConnectionError);
}

// Promise 3.
TEST_F(HandshakeTest, AServersProofIsNotAcceptedForAnotherHello) {
  auto handshake = connect(kToken);
  read_client_hello(*server);
  send_block(*server, body_of(server_hello(kToken, body_of(wire::Hello{}))));
  EXPECT_THAT(error_of<ConnectionError>(handshake), HasSubstr("does not know this token"));
}

TEST_F(HandshakeTest, AServerThatWantsATokenIsToldOfWithoutOne) {
  auto handshake = connect("");
  send_block(*server, body_of(server_hello(kToken, read_client_hello(*server))));
  EXPECT_THAT(error_of<ConnectionError>(handshake), HasSubstr("TORCH_REMOTE_TOKEN"));
}

TEST_F(HandshakeTest, ARefusalInPlaceOfAHelloGivesItsReason) {
  auto handshake = connect("");
  read_client_hello(*server);
  wire::Welcome refusal;
  refusal.answer = wire::Answer::kRefused;
  refusal.reason = "too many sessions";
  send_block(*server, body_of(refusal));
  EXPECT_EQ(error_of<ConnectionError>(handshake), "too many sessions");
}

TEST_F(HandshakeTest, ARefusalBehindTheProofGivesItsReason) {
  auto handshake = connect("");
  send_block(*server, body_of(server_hello("", read_client_hello(*server))));
  read_block(*server);
  wire::Welcome refusal;
  refusal.answer = wire::Answer::kRefused;
  refusal.reason = "the client's token is wrong";
  send_block(*server, body_of(refusal));
  EXPECT_EQ(error_of<ConnectionError>(handshake), "the client's token is wrong");
}

TEST_F(HandshakeTest, AServerOfOtherVersionsIsRefused) {
  auto handshake = connect("");
  wire::Hello hello = server_hello("", read_client_hello(*server));
  hello.min = static_cast<wire::Version>(1000);
  hello.max = static_cast<wire::Version>(1001);
  send_block(*server, body_of(hello));
  EXPECT_THAT(error_of<ProtocolError>(handshake), HasSubstr("1000"));
}

TEST_F(HandshakeTest, AServerWithoutADeviceIsRefused) {
  auto handshake = connect("");
  send_block(*server, body_of(server_hello("", read_client_hello(*server))));
  read_block(*server);
  wire::Welcome welcome = a_welcome();
  welcome.devices.clear();
  send_block(*server, body_of(welcome));
  EXPECT_THROW(handshake.get(), ProtocolError);
}

TEST_F(HandshakeTest, RubbishInPlaceOfAHelloIsAProtocolError) {
  auto handshake = connect("");
  read_client_hello(*server);
  send_block(*server, Bytes(40, std::byte{0xab}));
  EXPECT_THROW(handshake.get(), ProtocolError);
}

TEST_F(HandshakeTest, AnEmptyBlockIsAProtocolError) {
  auto handshake = connect("");
  read_client_hello(*server);
  send_block(*server, {});
  EXPECT_THROW(handshake.get(), ProtocolError);
}

TEST_F(HandshakeTest, ABlockThatIsTooLongIsRefusedBeforeItIsRead) {
  auto handshake = connect("");
  read_client_hello(*server);
  const uint32_t length = wire::kMaxHandshakeBytes + 1;
  send(*server, std::as_bytes(std::span(&length, 1)));
  EXPECT_THAT(error_of<ProtocolError>(handshake), HasSubstr("bytes of a handshake"));
}

TEST_F(HandshakeTest, AnotherProgramOnThePortIsNamed) {
  const std::vector<std::pair<std::string, std::string>> programs = {
      {"HTTP/1.1 400 Bad Request\r\n", "it speaks HTTP"},
      {"SSH-2.0-OpenSSH_9.2\r\n", "it speaks SSH"},
      {"\x15\x03\x01", "it speaks TLS"},
      {"", "an empty block"},
      {"220 mail.example ESMTP", "is over the limit"}};
  for (const auto& [said, words] : programs) {
    auto [ours, theirs] = transport::memory_pair();
    auto handshake = std::async(std::launch::async, [&] { return shake_hands(*ours, ""); });
    read_client_hello(*theirs);
    std::string padded = said;
    padded.resize(64);
    send(*theirs, std::as_bytes(std::span(padded)));
    const std::string error = error_of<ProtocolError>(handshake);
    EXPECT_THAT(error, HasSubstr("this is no torch-remote server"));
    EXPECT_THAT(error, HasSubstr(words));
  }
}

TEST_F(HandshakeTest, AServerThatHangsUpIsAConnectionError) {
  auto handshake = connect("");
  read_client_hello(*server);
  const uint32_t length = 10;
  send(*server, std::as_bytes(std::span(&length, 1)));
  server->shutdown();
  EXPECT_THAT(error_of<ConnectionError>(handshake), HasSubstr("during the handshake"));
}

TEST_F(HandshakeTest, TheClientsOpeningIsWithinWhatAStrangerMaySend) {
  auto handshake = connect(kToken);
  const Bytes theirs = read_client_hello(*server);
  send_block(*server, body_of(server_hello(kToken, theirs)));
  const Bytes proof = read_block(*server);
  send_block(*server, body_of(a_welcome()));
  handshake.get();
  const size_t blocks = sizeof(uint32_t) + theirs.size() + sizeof(uint32_t) + proof.size();
  EXPECT_LE(wire::kPreambleBytes + blocks, wire::kMaxHandshakeBytes);
}

}  // namespace
}  // namespace torch_remote::client::testing
