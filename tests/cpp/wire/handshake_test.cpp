#include "wire/handshake.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

using ::testing::HasSubstr;

template <typename Message>
std::vector<std::byte> body_of(const Message& message) {
  Writer writer;
  encode(writer, message);
  return writer.take();
}

TEST(Preamble, ItComesBackAndHasGoldenBytes) {
  Preamble preamble;
  preamble.intent = 1;
  preamble.route = 0x0102;
  const auto bytes = encode_preamble(preamble);
  EXPECT_EQ(hex(bytes),
            "5452454d4f54450a0300030001000000"
            "02010000000000000000000000000000");
  const Preamble back = decode_preamble(bytes);
  EXPECT_EQ(back.intent, 1);
  EXPECT_EQ(back.route, 0x0102);
}

// Promise 2.
TEST(Preamble, OnlyAClientThatResumesHasAProofOfItsRoute) {
  Secret secret{};
  secret.fill(std::byte{5});
  const std::string token(64, 't');
  Preamble preamble;
  preamble.intent = 1;
  preamble.route_proof = route_proof(resume_key(secret, token));
  EXPECT_EQ(decode_preamble(encode_preamble(preamble)).route_proof, preamble.route_proof);
  EXPECT_EQ(preamble.route_proof, route_proof(resume_key_without_token(secret, token)));
  EXPECT_NE(preamble.route_proof, route_proof(resume_key(secret, "another token")));
  preamble.intent = 0;
  EXPECT_THROW(decode_preamble(encode_preamble(preamble)), ProtocolError);
}

TEST(Preamble, AnotherMagicIntentOrReservedByteIsRefused) {
  for (const size_t at :
       {size_t{0}, size_t{7}, size_t{12}, size_t{13}, size_t{15}, size_t{24}, size_t{31}}) {
    auto bytes = encode_preamble({});
    bytes.at(at) = std::byte{0x7f};
    EXPECT_THROW(decode_preamble(bytes), ProtocolError) << at;
  }
}

TEST(Versions, TheHighestThatBothHaveIsAgreed) {
  EXPECT_EQ(agree(Version{1}, Version{9}), kMaxVersion);
  EXPECT_THROW(agree(Version{4}, Version{9}), ProtocolError);
  EXPECT_THROW(agree(Version{1}, Version{1}), ProtocolError);
  EXPECT_THROW(agree(Version{0}, Version{0}), ProtocolError);
  EXPECT_THROW(agree(Version{2}, Version{1}), ProtocolError);
}

TEST(Versions, AMismatchNamesBothEndsAndTheOneToUpgrade) {
  const auto said = [](Side us, Version min, Version max) {
    try {
      agree_as(us, min, max);
    } catch (const ProtocolError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string newer = said(Side::kClient, Version{100}, Version{101});
  EXPECT_THAT(newer, HasSubstr("the server has 100 to 101; install the newer torch-remote on the "
                               "client's machine"));
  const std::string at_server = said(Side::kServer, Version{100}, Version{101});
  EXPECT_THAT(at_server, HasSubstr("the client has 100 to 101, the server has "));
  EXPECT_THAT(at_server, HasSubstr("on the server's machine"));
  EXPECT_THAT(said(Side::kServer, Version{0}, Version{0}), HasSubstr("on the client's machine"));
}

TEST(Handshake, AHelloComesBackWithAndWithoutAProof) {
  Hello hello;
  hello.nonce.fill(std::byte{7});
  hello.torch_version = "2.13.0";
  hello.capabilities = 5;
  hello.received = 300;
  hello.machine.fill(std::byte{8});
  hello.process = 4711;
  EXPECT_EQ(decode_hello(body_of(hello)).torch_version, "2.13.0");
  hello.has_proof = true;
  hello.proof.fill(std::byte{9});
  const Hello back = decode_hello(body_of(hello));
  EXPECT_EQ(back.nonce, hello.nonce);
  EXPECT_EQ(back.capabilities, 5);
  EXPECT_EQ(back.received, 300);
  EXPECT_EQ(back.machine, hello.machine);
  EXPECT_EQ(back.process, 4711);
  EXPECT_EQ(back.proof, hello.proof);
}

TEST(Handshake, GoldenBytesOfAHelloAndAProof) {
  Hello hello;
  hello.torch_version = "2";
  hello.capabilities = 1;
  EXPECT_EQ(hex(body_of(hello)),
            "0103000300" + std::string(64, '0') + "01320100" + std::string(64, '0') + "0000");
  EXPECT_EQ(hex(body_of(ProofMessage{})), "0200");
}

TEST(Handshake, AnotherTagOrBytesLeftOverAreRefused) {
  auto body = body_of(Hello{});
  body[0] = std::byte{2};
  EXPECT_THROW(decode_hello(body), ProtocolError);
  body = body_of(Hello{});
  body.push_back(std::byte{0});
  EXPECT_THROW(decode_hello(body), ProtocolError);
  body = body_of(ProofMessage{});
  body.push_back(std::byte{0});
  EXPECT_THROW(decode_proof(body), ProtocolError);
}

TEST(Handshake, ALongTorchVersionIsRefused) {
  Hello hello;
  hello.torch_version = std::string(65, '2');
  EXPECT_THROW(decode_hello(body_of(hello)), ProtocolError);
}

TEST(Handshake, AWelcomeComesBackWithItsDevices) {
  Welcome welcome;
  welcome.session = "0123abcd";
  welcome.secret.fill(std::byte{5});
  welcome.lease = 600'000;
  welcome.host = "gpu-box";
  welcome.pid = 4711;
  welcome.torch_version = "2.13.0";
  welcome.mkldnn = true;
  welcome.cudnn = 91002;
  welcome.operators.fill(std::byte{3});
  welcome.devices = {{DeviceKind::kCuda, "H100", 80, 9, 0, 132}};
  const Welcome back = decode_welcome(body_of(welcome));
  EXPECT_EQ(back.answer, Answer::kNew);
  EXPECT_EQ(back.secret, welcome.secret);
  EXPECT_EQ(back.lease, 600'000);
  EXPECT_EQ(back.host, "gpu-box");
  EXPECT_EQ(back.pid, 4711);
  EXPECT_EQ(back.operators, welcome.operators);
  ASSERT_EQ(back.devices.size(), 1);
  EXPECT_EQ(back.devices[0].kind, DeviceKind::kCuda);
  EXPECT_EQ(back.devices[0].multi_processors, 132);
}

TEST(Handshake, ARefusalCarriesItsReason) {
  Welcome welcome;
  welcome.answer = Answer::kRefused;
  welcome.reason = "no";
  EXPECT_EQ(hex(body_of(welcome)), "0300026e6f");
  EXPECT_EQ(decode_welcome(body_of(welcome)).reason, "no");
}

// Promise 7b.
TEST(Handshake, NamesOfAServerThatAreNotUtf8AreReadable) {
  Welcome welcome;
  welcome.session = "1a2b3c4d";
  welcome.host = "h\xe9";
  welcome.devices.emplace_back().name = "GPU \xff";
  Writer writer;
  encode(writer, welcome);
  const Welcome back = decode_welcome(writer.take());
  EXPECT_EQ(back.host, "h\xef\xbf\xbd");
  EXPECT_EQ(back.devices.at(0).name, "GPU \xef\xbf\xbd");

  welcome.session = "1a2b3c4\xff";
  encode(writer, welcome);
  EXPECT_THROW(decode_welcome(writer.take()), ProtocolError);
}

TEST(Handshake, AResumedSessionIsWelcomedByWhatTheServerHasReceived) {
  Welcome welcome;
  welcome.answer = Answer::kResumed;
  welcome.received = 300;
  EXPECT_EQ(hex(body_of(welcome)), "0302ac02");
  EXPECT_EQ(decode_welcome(body_of(welcome)).received, 300);
  EXPECT_THROW(decode_welcome(from_hex("0302ac0200")), ProtocolError);
  EXPECT_THROW(decode_welcome(from_hex("0303")), ProtocolError);
}

TEST(Sessions, AnIdIsEightDigitsAndComesBack) {
  EXPECT_EQ(session_id(0x1a2b), "00001a2b");
  EXPECT_EQ(session_route("00001a2b"), 0x1a2b);
  for (const char* bad : {"", "1a2b", "00001a2g", "000001a2b", "-0001a2b", " 0001a2b"})
    EXPECT_THROW(session_route(bad), ProtocolError) << bad;
}

TEST(Handshake, AnUnknownDeviceKindIsRefused) {
  Welcome welcome;
  welcome.devices.resize(1);
  auto body = body_of(welcome);
  body[body.size() - 6] = std::byte{2};
  EXPECT_THROW(decode_welcome(body), ProtocolError);
}

TEST(Proofs, TheyDependOnTokenSideAndBothHellos) {
  const auto a = from_hex("01");
  const auto b = from_hex("02");
  const Proof proof = make_proof("token", Side::kClient, a, b);
  EXPECT_TRUE(equal_proofs(proof, make_proof("token", Side::kClient, a, b)));
  EXPECT_FALSE(equal_proofs(proof, make_proof("other", Side::kClient, a, b)));
  EXPECT_FALSE(equal_proofs(proof, make_proof("token", Side::kServer, a, b)));
  EXPECT_FALSE(equal_proofs(proof, make_proof("token", Side::kClient, b, a)));
}

// Promise 3a.
TEST(Proofs, AProofOfOneTlsConnectionIsWorthNothingOnAnother) {
  const auto a = from_hex("01");
  const auto b = from_hex("02");
  const std::vector<std::byte> here(32, std::byte{7});
  const std::vector<std::byte> there(32, std::byte{8});
  const Proof proof = make_proof("token", Side::kClient, a, b, here);
  EXPECT_EQ(hex(proof), "e50115b393711e5a4957e2f8c7c26a91c79fc79d2e3aa1ec1181a996da8d1faa");
  EXPECT_EQ(hex(make_proof("token", Side::kClient, a, b)),
            "cb33fcd2cfa94c980c9ecc7c6960ff633cf40e3a8946b74650db3ce8a0f34ef1");
  EXPECT_FALSE(equal_proofs(proof, make_proof("token", Side::kClient, a, b, there)));
  EXPECT_FALSE(equal_proofs(proof, make_proof("token", Side::kClient, a, b)));
}

TEST(Proofs, TheKeyOfAResumedSessionDependsOnSecretAndToken) {
  Secret secret{};
  Secret other{};
  other[31] = std::byte{1};
  EXPECT_NE(resume_key(secret, "token"), resume_key(other, "token"));
  EXPECT_NE(resume_key(secret, "token"), resume_key(secret, ""));
}

TEST(Proofs, AResumeKeyWithoutTheTokenMakesTheSameProofs) {
  Secret secret{};
  secret.fill(std::byte{7});
  const std::vector<std::byte> a(5, std::byte{1});
  const std::vector<std::byte> b(6, std::byte{2});
  for (const size_t length : {size_t{16}, kShortToken, kShortToken + 1, size_t{64}, size_t{200}}) {
    const std::string token(length, 't');
    const std::string key = resume_key_without_token(secret, token);
    EXPECT_EQ(make_proof(key, Side::kClient, a, b),
              make_proof(resume_key(secret, token), Side::kClient, a, b));
    EXPECT_LE(key.size(), 64U);
    EXPECT_EQ(length > kShortToken, key.find(token.substr(0, 8)) == std::string::npos);
  }
}

TEST(Proofs, Sha256IsSha256) {
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span(std::string_view("abc"))))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

using Bytes = std::vector<std::byte>;

Bytes block_of(const Hello& hello) {
  Writer writer;
  encode(writer, hello);
  const BlockHead head = encode_block_head(writer.view().size());
  Bytes block(head.size() + writer.view().size());
  std::ranges::copy(writer.view(), std::ranges::copy(head, block.begin()).out);
  return block;
}

TEST(Waiting, TheBlockHasGoldenBytes) {
  const WaitingBlock golden{std::byte{2}, std::byte{0}, std::byte{0},
                            std::byte{0}, std::byte{3}, std::byte{3}};
  EXPECT_EQ(waiting_block(), golden);
}

TEST(Waiting, AHelloIsWholeWithItsLastByteAndNotBefore) {
  Bytes block = block_of({});
  for (size_t length = 0; length < block.size(); ++length)
    EXPECT_FALSE(holds_hello(std::span(block).first(length))) << length;
  EXPECT_TRUE(holds_hello(block));
  block.push_back(std::byte{7});  // what comes after it does not matter
  EXPECT_TRUE(holds_hello(block));
}

// Promise 2.
TEST(Waiting, WhatIsNoHelloIsRefusedAsSoonAsItIsSeen) {
  Bytes block = block_of({});
  block[4] = std::byte{2};
  EXPECT_THROW(holds_hello(std::span(block).first(5)), ProtocolError);
  block[4] = std::byte{1};
  block.back() = std::byte{1};  // a proof that is not there
  EXPECT_THROW(holds_hello(block), ProtocolError);
  const BlockHead longest = encode_block_head(kMaxHandshakeBytes);
  EXPECT_THROW(holds_hello(longest), ProtocolError);
  const BlockHead empty = encode_block_head(0);
  EXPECT_THROW(holds_hello(empty), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
