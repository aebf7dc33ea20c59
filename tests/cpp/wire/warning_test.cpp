#include "wire/warning.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

Warning decoded(const std::vector<std::byte>& body) {
  Reader reader(body);
  Warning warning = decode_warning(reader);
  reader.finish();
  return warning;
}

Warning sent_and_decoded(const Warning& warning) {
  Writer writer;
  encode(writer, warning);
  Reader reader(writer.view());
  ReceivedMessage message = next_message(reader);
  EXPECT_EQ(message.tag, Tag::kWarning);
  Warning back = decode_warning(message.body);
  message.body.finish();
  return back;
}

TEST(Warning, ComesBackAndHasGoldenBytes) {
  const Warning warning{300, 2, 1, 5, true, WarningCategory::kDeprecation, "old"};
  Writer writer;
  encode(writer, warning);
  EXPECT_EQ(hex(writer.view()), "1b0aac0202010501036f6c64");
  const Warning back = sent_and_decoded(warning);
  EXPECT_EQ(back.call, 300);
  EXPECT_EQ(back.program, 2);
  EXPECT_EQ(back.step, 1);
  EXPECT_EQ(back.number, 5);
  EXPECT_TRUE(back.is_new);
  EXPECT_EQ(back.category, WarningCategory::kDeprecation);
  EXPECT_EQ(back.text, "old");
}

TEST(Warning, WithATextThatWasSentIsItsNumber) {
  Warning warning;
  warning.call = 300;
  warning.number = 5;
  Writer writer;
  encode(writer, warning);
  EXPECT_EQ(hex(writer.view()), "1b05ac02000005");
  EXPECT_FALSE(sent_and_decoded(warning).is_new);
}

TEST(Warning, ALongTextIsCutByTheSenderAndRefusedByTheReceiver) {
  Warning warning{1, 0, 0, 1, true, WarningCategory::kUser, std::string(kMaxWarningText + 1, 'x')};
  EXPECT_EQ(sent_and_decoded(warning).text.size(), kMaxWarningText);
  Writer writer;
  for (const uint64_t field : {1U, 0U, 0U, 1U})
    writer.varint(field);
  writer.u8(0);
  writer.text(warning.text);
  EXPECT_THROW(decoded(writer.take()), ProtocolError);
}

TEST(Warning, ATextIsMadeReadable) {
  const Warning warning{1, 0, 0, 1, true, WarningCategory::kUser, "a\x1b[2Jb"};
  EXPECT_EQ(sent_and_decoded(warning).text, "a\uFFFD[2Jb");
}

TEST(Warning, NumbersAndCategoriesAreChecked) {
  EXPECT_THROW(decoded(from_hex("01000000")), ProtocolError);        // no text has number 0
  EXPECT_THROW(decoded(from_hex("010000010200")), ProtocolError);    // no category 2
  EXPECT_THROW(decoded(from_hex("01000001000078")), ProtocolError);  // bytes behind the text
  EXPECT_THROW(decoded(from_hex("010181800401")), ProtocolError);    // a step beyond the limit
  Writer writer;
  for (const uint64_t field : {uint64_t{1}, uint64_t{0}, uint64_t{0}, kMaxWarningTexts + 1})
    writer.varint(field);
  EXPECT_THROW(decoded(writer.take()), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
