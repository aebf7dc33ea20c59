#include "base/escape.h"

#include <string>

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

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
