#include "base/text.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Utf8, WellFormedTextIsAccepted) {
  for (const char* text : {"", "a", "\xc2\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80",
                           "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(bytes_of(text))) << text;
}

TEST(Utf8, MalformedTextIsRefused) {
  for (const char* text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80",
                           "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5", "\xe1\x80", "\xc2z"})
    EXPECT_FALSE(is_utf8(bytes_of(text))) << text;
}

TEST(Utf8, WhatIsNoCharacterIsReplacedAndTheRestIsKept) {
  EXPECT_EQ(readable(bytes_of("caf\xc3\xa9")), "caf\xc3\xa9");
  EXPECT_EQ(readable(bytes_of("a\xff"
                              "b")),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(readable(bytes_of("cut \xe2\x82")), "cut \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(readable({}), "");
}

// Promise 13a.
TEST(Utf8, WhatChangesATerminalOrTheOrderOfATextIsReplaced) {
  const std::string_view replaced = "\xef\xbf\xbd";
  // ESC, BEL, CR, DEL, CSI as C1, and the controls of direction.
  for (const char* control : {"\x1b", "\x07", "\r", "\x01", "\x1f", "\x7f", "\xc2\x80", "\xc2\x9b",
                              "\xc2\x9f", "\xd8\x9c", "\xe2\x80\x8e", "\xe2\x80\x8f",
                              "\xe2\x80\xaa", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa9"}) {
    const std::string text = "a" + std::string(control) + "b";
    EXPECT_EQ(readable(bytes_of(text)), "a" + std::string(replaced) + "b") << text;
    EXPECT_EQ(readable_line(bytes_of(text)), "a" + std::string(replaced) + "b") << text;
  }
  EXPECT_EQ(readable(bytes_of(std::string_view("a\0b", 3))), "a" + std::string(replaced) + "b");
  // The neighbours of those are letters and spaces.
  const std::string kept =
      " ~\xc2\xa0\xd8\x9b\xe2\x80\x8d\xe2\x80\x90\xe2\x80\xaf\xe2\x81\xa5\xf0\x9f\x98\x80";
  EXPECT_EQ(readable_line(bytes_of(kept)), kept);
}

// Promise 13a.
TEST(Utf8, ATextKeepsItsLinesAndANameHasNone) {
  EXPECT_EQ(readable(bytes_of("one\n\ttwo")), "one\n\ttwo");
  EXPECT_EQ(readable_line(bytes_of("one\n\ttwo")), "one\xef\xbf\xbd\xef\xbf\xbdtwo");
}

TEST(Utf8, TextIsCutBetweenCharacters) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("abc", 2), "ab");
  EXPECT_EQ(cut_text("a\xf0\x9f\x98\x80", 4), "a");
  EXPECT_EQ(cut_text("\xf0\x9f\x98\x80"
                     "b",
                     4),
            "\xf0\x9f\x98\x80");
  EXPECT_EQ(cut_text("\x80\x80\x80\x80\x80\x80", 5).size(), 5);
}

TEST(Escape, WhatATerminalShowsStaysAsItIs) {
  for (const std::string text : {"plain \\ \"text\"", "Grüße, 世界 🙂", ""}) {
    EXPECT_EQ(escaped(text), text);
    EXPECT_FALSE(needs_escapes(text));
  }
}

// Promise 12.
TEST(Escape, WhatATerminalObeysIsEscaped) {
  EXPECT_EQ(escaped("\x1b[2J\t\n\x7f"), "\\x1b[2J\\x09\\x0a\\x7f");
  EXPECT_EQ(escaped("\xc2\x9b"
                    "2J\xc2\x85"),
            "\\u009b2J\\u0085");
  EXPECT_EQ(escaped("\xe2\x80\xa8\xe2\x80\xae"), "\\u2028\\u202e");
  EXPECT_TRUE(needs_escapes("a\xc2\x9b"));
}

// Promise 12.
TEST(Escape, WhatIsNoCharacterIsEscapedByteByByte) {
  EXPECT_EQ(escaped("\x9b"
                    "2J"),
            "\\x9b2J");
  EXPECT_EQ(escaped("\xe4\xb8"), "\\xe4\\xb8");
  EXPECT_EQ(escaped("\xc0\xaf\xff!"), "\\xc0\\xaf\\xff!");
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

}  // namespace
}  // namespace torch_remote
