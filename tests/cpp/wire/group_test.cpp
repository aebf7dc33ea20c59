#include "wire/group.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

GroupQuery decoded(const std::vector<std::byte>& bytes) {
  Reader reader(bytes);
  GroupQuery query = decode_group_query(reader);
  reader.finish();
  return query;
}

std::vector<std::byte> encoded(const GroupQuery& query) {
  Writer writer;
  encode(writer, query);
  return writer.take();
}

GroupQuery open_query() {
  GroupQuery query;
  query.group = 3;
  query.device = 1;
  query.rank = 1;
  query.size = 2;
  query.timeout = 1000;
  query.address = "::1";
  return query;
}

TEST(Group, AnOpeningComesBackAndHasGoldenBytes) {
  const auto bytes = encoded(open_query());
  EXPECT_EQ(hex(bytes), "0300010102e807033a3a31");
  const GroupQuery back = decoded(bytes);
  EXPECT_EQ(back.group, 3u);
  EXPECT_EQ(back.action, GroupAction::kOpen);
  EXPECT_EQ(back.device, 1);
  EXPECT_EQ(back.rank, 1u);
  EXPECT_EQ(back.size, 2u);
  EXPECT_EQ(back.timeout, 1000u);
  EXPECT_EQ(back.address, "::1");
}

TEST(Group, ValuesAndAClosingComeBackAndHaveGoldenBytes) {
  GroupQuery query;
  query.group = 3;
  query.action = GroupAction::kGoOn;
  query.entries = {{"k", from_hex("0102")}};
  EXPECT_EQ(hex(encoded(query)),
            "03010101"
            "6b"
            "020102");
  EXPECT_EQ(decoded(encoded(query)).entries, query.entries);
  query.action = GroupAction::kClose;
  EXPECT_EQ(hex(encoded(query)), "0302");
  EXPECT_EQ(decoded(encoded(query)).action, GroupAction::kClose);
}

TEST(Group, AnAnswerComesBackAndHasGoldenBytes) {
  GroupAnswer answer;
  answer.entries = {{"a", from_hex("09")}};
  answer.missing = {"b"};
  Writer writer;
  encode(writer, answer);
  EXPECT_EQ(hex(writer.view()),
            "000101"
            "61"
            "0109"
            "0101"
            "62");
  const auto bytes = writer.take();
  Reader reader(bytes);
  const GroupAnswer back = decode_group_answer(reader);
  EXPECT_FALSE(back.is_open);
  EXPECT_EQ(back.entries, answer.entries);
  EXPECT_EQ(back.missing, answer.missing);
}

TEST(Group, ActionsFlagsRanksAndTimeoutsAreChecked) {
  EXPECT_THROW(decoded(from_hex("0303")), ProtocolError);
  const auto answer = from_hex("020000");
  Reader reader(answer);
  EXPECT_THROW(decode_group_answer(reader), ProtocolError);
  GroupQuery query = open_query();
  query.rank = 2;  // of 2
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
  query = open_query();
  query.timeout = 0;
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
}

TEST(Group, EverythingThatSizesSomethingHasALimit) {
  GroupQuery query = open_query();
  query.size = kMaxGroupSize + 1;
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
  query = open_query();
  query.timeout = kMaxGroupTimeout + 1;
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
  query = open_query();
  query.address.assign(kMaxGroupKey + 1, 'a');
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
  query.action = GroupAction::kGoOn;
  query.entries = {{std::string(kMaxGroupKey + 1, 'k'), {}}};
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
  query.entries = {{"k", std::vector<std::byte>(kMaxGroupValue + 1)}};
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
  query.entries.assign(kMaxGroupEntries + 1, {"k", {}});
  EXPECT_THROW(decoded(encoded(query)), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
