#include "base/json_reader.h"

#include <vector>

#include <gmock/gmock.h>

namespace torch_remote {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string string_of(std::string_view text) {
  JsonReader json(text);
  std::string read = json.string();
  json.finish();
  return read;
}

uint64_t number_of(std::string_view text) {
  JsonReader json(text);
  const uint64_t read = json.whole_number();
  json.finish();
  return read;
}

void skip(std::string_view text) {
  JsonReader json(text);
  json.skip();
  json.finish();
}

// Why the text is refused; empty: it is not.
std::string refusal_of(std::string_view text) {
  try {
    skip(text);
  } catch (const JsonError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonReader, ReadsObjectsListsStringsAndNumbers) {
  JsonReader json(" {\"a\" : [1, 20],\"b\":[]}\n");
  std::vector<std::pair<std::string, std::vector<uint64_t>>> read;
  json.object([&](const std::string& key) {
    read.emplace_back(key, std::vector<uint64_t>());
    json.array([&] { read.back().second.push_back(json.whole_number()); });
  });
  json.finish();
  EXPECT_THAT(read, ElementsAre(Pair("a", ElementsAre(1, 20)), Pair("b", ElementsAre())));
}

TEST(JsonReader, EscapesAreCharacters) {
  EXPECT_EQ(string_of(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(string_of(R"("\u0041\u00e9\u20AC\uD83D\uDE00")"), "A\u00e9\u20ac\U0001f600");
}

TEST(JsonReader, HalfACharacterIsRefused) {
  for (const char* const text :
       {R"("\uD83D")", R"("\uD83Dx")", R"("\uD83D\u0041")", R"("\uDE00")", R"("\u12")", "\"\xff\""})
    EXPECT_THROW(string_of(text), JsonError) << text;
}

TEST(JsonReader, ANumberIsWholeAndFits) {
  EXPECT_EQ(number_of("0"), 0);
  EXPECT_EQ(number_of("18446744073709551615"), UINT64_MAX);
  for (const char* const text : {"18446744073709551616", "99999999999999999999", "-1", "1.0", "1e3",
                                 "01", "", "\"1\"", "1 2"})
    EXPECT_THROW(number_of(text), JsonError) << text;
}

TEST(JsonReader, AnyValueIsSkipped) {
  for (const char* const text : {"null", "true", "false", "0", "-0.5e+3", "12E4", "\"a\"", "[]",
                                 "{}", "[1,{\"a\":[null]},\"x\"]"})
    EXPECT_EQ(refusal_of(text), "") << text;
}

TEST(JsonReader, WhatIsNoJsonIsRefused) {
  for (const char* const text :
       {"",   "nul", "[1,]", "[1 2]", "[",      "{\"a\"}", "{\"a\":1,}", "{a:1}", "{,}", "1.",
        ".5", "1e",  "+1",   "\"a",   "\"\n\"", "\"\\x\"", "\"\\",       "[] []", "//",  "NaN"})
    EXPECT_NE(refusal_of(text), "") << text;
}

TEST(JsonReader, DepthIsLimited) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(refusal_of(nested(JsonReader::kMaxDepth)), "");
  EXPECT_THAT(refusal_of(nested(JsonReader::kMaxDepth + 1)), HasSubstr("too deep"));
  EXPECT_THAT(refusal_of(nested(1 << 20)), HasSubstr("too deep"));
}

TEST(JsonReader, AnErrorSaysWhere) {
  EXPECT_EQ(refusal_of("[1, x]"), "byte 4: a value is expected");
  EXPECT_EQ(refusal_of("[\xff]"), "the text is not UTF-8");
}

}  // namespace
}  // namespace torch_remote
