#include "base/utf8.h"

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

}  // namespace
}  // namespace torch_remote
