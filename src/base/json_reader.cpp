#include "base/json_reader.h"

#include <span>

#include "base/text.h"

namespace torch_remote {
namespace {

bool is_digit(char character) {
  return character >= '0' && character <= '9';
}

// The character as UTF-8.
void append(std::string& text, uint32_t code) {
  const auto add = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80)
    return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

}  // namespace

JsonError::JsonError(size_t at, const std::string& what)
    : std::runtime_error("byte " + std::to_string(at) + ": " + what) {}

JsonReader::JsonReader(std::string_view text) : text_(text) {
  if (!is_utf8(std::as_bytes(std::span(text))))
    throw JsonError("the text is not UTF-8");
}

void JsonReader::fail(const std::string& what) const {
  throw JsonError(at_, what);
}

void JsonReader::skip_white() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
    ++at_;
}

char JsonReader::peek() {
  skip_white();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::begin(char wanted, const char* otherwise) {
  if (peek() != wanted)
    fail(otherwise);
  ++at_;
}

bool JsonReader::goes_on(char end, bool is_first) {
  const char next = peek();
  if (next == end) {
    ++at_;
    return false;
  }
  if (!is_first)
    begin(',', "',' or the end is expected");
  return true;
}

bool JsonReader::take(std::string_view word) {
  if (!text_.substr(at_).starts_with(word))
    return false;
  at_ += word.size();
  return true;
}

std::string JsonReader::string() {
  begin('"', "a string is expected");
  std::string read;
  while (at_ < text_.size()) {
    const char character = text_[at_++];
    if (character == '"')
      return read;
    if (static_cast<uint8_t>(character) < 0x20)
      fail("a string has a control character");
    if (character == '\\')
      escape(read);
    else
      read.push_back(character);
  }
  fail("a string does not end");
}

// What follows a '\'.
void JsonReader::escape(std::string& text) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kCharacters = "\"\\/\b\f\n\r\t";
  const char name = at_ < text_.size() ? text_[at_++] : '\0';
  if (const size_t found = kNames.find(name); found != std::string_view::npos && name != '\0')
    return text.push_back(kCharacters[found]);
  if (name != 'u')
    fail("a string has an unknown escape");
  uint32_t code = four_digits();
  if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
    const uint32_t low = take("\\u") ? four_digits() : 0;
    if (low < 0xdc00 || low >= 0xe000)
      fail("a string has half a character");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code < 0xe000) {
    fail("a string has half a character");
  }
  append(text, code);
}

uint32_t JsonReader::four_digits() {
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    const size_t digit = at_ < text_.size() ? kDigits.find(text_[at_]) : std::string_view::npos;
    if (digit == std::string_view::npos)
      fail("an escape has four digits");
    code = code * 16 + static_cast<uint32_t>(digit < 16 ? digit : digit - 6);
    ++at_;
  }
  return code;
}

uint64_t JsonReader::whole_number() {
  if (!is_digit(peek()))
    fail("a whole number is expected");
  const size_t first = at_;
  uint64_t value = 0;
  while (at_ < text_.size() && is_digit(text_[at_])) {
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(text_[at_] - '0'), &value))
      fail("a number is too large");
    ++at_;
  }
  if (text_[first] == '0' && at_ - first > 1)
    fail("a number begins with 0");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    fail("a whole number is expected");
  return value;
}

void JsonReader::skip(int depth) {
  if (depth == kMaxDepth)
    fail("it is nested too deep");
  const char next = peek();
  if (next == '{')
    return object([&](const std::string& /*key*/) { skip(depth + 1); });
  if (next == '[')
    return array([&] { skip(depth + 1); });
  if (next == '"') {
    string();
    return;
  }
  if (!take("true") && !take("false") && !take("null"))
    skip_number();
}

void JsonReader::skip_digits() {
  if (at_ == text_.size() || !is_digit(text_[at_]))
    fail("a value is expected");
  while (at_ < text_.size() && is_digit(text_[at_]))
    ++at_;
}

void JsonReader::skip_number() {
  take("-");
  if (!take("0"))
    skip_digits();
  if (take("."))
    skip_digits();
  if (take("e") || take("E")) {
    if (!take("+"))
      take("-");
    skip_digits();
  }
}

void JsonReader::finish() {
  skip_white();
  if (at_ != text_.size())
    fail("something follows the end");
}

}  // namespace torch_remote
