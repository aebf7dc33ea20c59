#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

namespace torch_remote {
namespace {

// For one first byte: how many bytes follow, and the range of the second. The ranges exclude
// overlong forms, surrogates and everything above U+10FFFF (RFC 3629, section 4).
struct Lead {
  size_t follow;
  uint8_t low;
  uint8_t high;
};

constexpr Lead kInvalid{SIZE_MAX, 0, 0};
constexpr uint32_t kLineSeparator = 0x2028;
constexpr uint32_t kParagraphSeparator = 0x2029;

Lead lead_of(uint8_t byte) noexcept {
  if (byte < 0x80)
    return {0, 0, 0};
  if (byte < 0xc2 || byte > 0xf4)
    return kInvalid;
  if (byte < 0xe0)
    return {1, 0x80, 0xbf};
  if (byte < 0xf0) {
    return {2, static_cast<uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            static_cast<uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  return {3, static_cast<uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
          static_cast<uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
}

bool follows(std::span<const std::byte> bytes, const Lead& lead) noexcept {
  if (bytes.size() < lead.follow)
    return false;
  uint8_t low = lead.low;
  uint8_t high = lead.high;
  for (const std::byte next : bytes.first(lead.follow)) {
    const auto code = std::to_integer<uint8_t>(next);
    if (code < low || code > high)
      return false;
    low = 0x80;
    high = 0xbf;
  }
  return true;
}

// The code point of a character.
uint32_t code_of(std::span<const std::byte> character) noexcept {
  const auto first = std::to_integer<uint32_t>(character.front());
  if (character.size() == 1)
    return first;
  uint32_t code = first & (0x7fU >> character.size());
  for (const std::byte next : character.subspan(1))
    code = code << 6 | (std::to_integer<uint32_t>(next) & 0x3f);
  return code;
}

bool is_control(uint32_t code) noexcept {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f);
}

// Unicode's controls of direction, which can make a text look like another.
bool is_directional(uint32_t code) noexcept {
  return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

// How many bytes the text's first character has; 0: it begins with a byte that is part of none.
size_t first_length(std::span<const std::byte> text) noexcept {
  const Lead lead = lead_of(std::to_integer<uint8_t>(text.front()));
  return follows(text.subspan(1), lead) ? lead.follow + 1 : 0;
}

std::string make_readable(std::span<const std::byte> bytes, bool has_lines) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = first_length(bytes);
    const auto taken = bytes.first(std::max<size_t>(length, 1));
    const uint32_t code = code_of(taken);
    const bool is_kept = has_lines && (code == '\n' || code == '\t');
    if (length > 0 && (is_kept || !(is_control(code) || is_directional(code))))
      text.append(reinterpret_cast<const char*>(taken.data()), taken.size());
    else
      text += "\xef\xbf\xbd";
    bytes = bytes.subspan(taken.size());
  }
  return text;
}

// Calls `take` for each character and for each byte that is part of none, with its code and whether
// a terminal or a line of the log may have it. Stops when `take` returns false.
template <typename Take>
void walk(std::string_view text, Take&& take) {
  while (!text.empty()) {
    const auto bytes = std::as_bytes(std::span(text));
    const size_t length = first_length(bytes);
    const std::string_view taken = text.substr(0, std::max<size_t>(length, 1));
    const uint32_t code = code_of(bytes.first(taken.size()));
    const bool is_shown = length > 0 && !is_control(code) && !is_directional(code) &&
                          code != kLineSeparator && code != kParagraphSeparator;
    if (!take(taken, code, is_shown))
      return;
    text.remove_prefix(taken.size());
  }
}

}  // namespace

bool is_utf8(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const Lead lead = lead_of(std::to_integer<uint8_t>(bytes.front()));
    bytes = bytes.subspan(1);
    if (!follows(bytes, lead))
      return false;
    bytes = bytes.subspan(lead.follow);
  }
  return true;
}

std::string readable(std::span<const std::byte> bytes) {
  return make_readable(bytes, true);
}

std::string readable_line(std::span<const std::byte> bytes) {
  return make_readable(bytes, false);
}

std::string_view cut_text(std::string_view text, size_t limit) noexcept {
  constexpr size_t kMostFollow = 3;
  if (text.size() <= limit)
    return text;
  const auto is_inside = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80; };
  for (size_t end = limit; end > 0 && limit - end <= kMostFollow; --end)
    if (!is_inside(end))
      return text.substr(0, end);
  return text.substr(0, limit);  // not UTF-8
}

bool needs_escapes(std::string_view text) {
  bool needs = false;
  walk(text, [&](std::string_view, uint32_t, bool is_shown) {
    needs = !is_shown;
    return is_shown;
  });
  return needs;
}

std::string escaped(std::string_view text) {
  std::string result;
  walk(text, [&](std::string_view taken, uint32_t code, bool is_shown) {
    std::array<char, 8> escape{};
    std::snprintf(escape.data(), escape.size(), taken.size() == 1 ? "\\x%02x" : "\\u%04x", code);
    result += is_shown ? taken : std::string_view(escape.data());
    return true;
  });
  return result;
}

}  // namespace torch_remote
