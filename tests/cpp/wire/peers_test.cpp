#include "wire/peers.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

PeerQuery decoded(const std::vector<std::byte>& bytes) {
  Reader reader(bytes);
  PeerQuery query = decode_peer_query(reader);
  reader.finish();
  return query;
}

PeerAnswer decoded_answer(const std::vector<std::byte>& bytes, PeerAction action) {
  Reader reader(bytes);
  PeerAnswer answer = decode_peer_answer(reader, action);
  reader.finish();
  return answer;
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i)
    all += text;
  return all;
}

TEST(Peers, QueriesComeBackAndHaveGoldenBytes) {
  PeerQuery query;
  query.link = 5;
  query.ticket.fill(std::byte{0xab});
  query.address = {"::1", 300, "pin"};
  query.storage = 7;
  query.offset = 9;
  query.length = 200;
  query.spec.dtype = Dtype::kUint8;
  query.spec.sizes = {3};
  query.spec.strides = {1};
  const std::string ticket = repeated("ab", 32);
  const std::vector<std::pair<PeerAction, std::string>> golden{
      {PeerAction::kListen, "0005" + ticket},
      {PeerAction::kConnect, "0105" + ticket + "033a3a31ac020370696e"},
      {PeerAction::kSend, "0205070900010103"},
      {PeerAction::kReceive, "03050709c801"},
      {PeerAction::kClose, "0405"},
  };
  for (const auto& one : golden) {
    query.action = one.first;
    Writer writer;
    encode(writer, query);
    EXPECT_EQ(hex(writer.view()), one.second);
    const PeerQuery back = decoded(writer.take());
    EXPECT_EQ(back.action, one.first);
    EXPECT_EQ(back.link, 5);
    EXPECT_EQ(back.address, one.first == PeerAction::kConnect ? query.address : PeerAddress());
    EXPECT_EQ(back.spec, one.first == PeerAction::kSend ? query.spec : TensorSpec());
    EXPECT_EQ(back.length, one.first == PeerAction::kReceive ? 200 : 0);
  }
}

TEST(Peers, ActionsNamesPortsAndLengthsAreChecked) {
  EXPECT_THROW(decoded(from_hex("0505")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0400")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0005abab")), ProtocolError);
  const std::string ticket = repeated("ab", 32);
  EXPECT_THROW(decoded(from_hex("0105" + ticket + "00" + "05" + "00")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0105" + ticket + "0131" + "00" + "00")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("0105" + ticket + "0131" + "808004" + "00")), ProtocolError);
  EXPECT_THROW(decoded(from_hex("03050009c801")), ProtocolError);
  Writer writer;
  writer.raw(from_hex("03050709"));
  writer.varint(kMaxStorageBytes + 1);
  EXPECT_THROW(decoded(writer.take()), ProtocolError);
}

TEST(Peers, AnswersHaveAReasonOrAPlace) {
  Writer writer;
  encode(writer, PeerAnswer{"", {"127.0.0.1", 80, ""}}, PeerAction::kListen);
  EXPECT_EQ(hex(writer.view()), "01093132372e302e302e315000");
  EXPECT_EQ(decoded_answer(writer.take(), PeerAction::kListen).address.port, 80);
  EXPECT_EQ(decoded_answer(from_hex("01"), PeerAction::kSend).reason, "");
  EXPECT_EQ(decoded_answer(from_hex("000161"), PeerAction::kListen).reason, "a");
  EXPECT_THROW(decoded_answer(from_hex("0000"), PeerAction::kSend), ProtocolError);
  EXPECT_THROW(decoded_answer(from_hex("02"), PeerAction::kSend), ProtocolError);
  EXPECT_THROW(decoded_answer(from_hex("01"), PeerAction::kListen), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
