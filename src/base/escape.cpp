#include "base/escape.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "base/utf8.h"

namespace torch_remote {
namespace {

// The first character of the text; of one byte where that is none.
std::string_view first_of(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text.front());
  const size_t length = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const std::string_view whole = text.substr(0, length);
  return is_utf8(std::as_bytes(std::span(whole))) ? whole : text.substr(0, 1);
}

// Of a character.
uint32_t code_of(std::string_view character) {
  const auto lead = static_cast<uint8_t>(character.front());
  uint32_t code = character.size() == 1 ? lead : lead & (0x7fU >> character.size());
  for (const char next : character.substr(1))
    code = code << 6 | (static_cast<uint8_t>(next) & 0x3fU);
  return code;
}

bool is_invisible(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
         (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

// A byte of 0x80 and more that stands alone is no character.
bool is_shown(std::string_view character) {
  const bool is_alone = character.size() == 1 && static_cast<uint8_t>(character.front()) >= 0x80;
  return !is_alone && !is_invisible(code_of(character));
}

}  // namespace

bool needs_escapes(std::string_view text) {
  while (!text.empty()) {
    const std::string_view character = first_of(text);
    if (!is_shown(character))
      return true;
    text.remove_prefix(character.size());
  }
  return false;
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::string_view character = first_of(text);
    text.remove_prefix(character.size());
    if (is_shown(character)) {
      result += character;
      continue;
    }
    std::array<char, 8> code{};
    std::snprintf(code.data(), code.size(), character.size() == 1 ? "\\x%02x" : "\\u%04x",
                  code_of(character));
    result += code.data();
  }
  return result;
}

}  // namespace torch_remote
