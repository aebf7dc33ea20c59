#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace torch_remote {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::span<const std::byte> bytes) noexcept;

// For what people read and a peer wrote. The text, with U+FFFD in place of each byte that is not
// part of a character, because the text may be wrong or cut inside one; and of each character that
// changes a terminal or the order of what it shows: C0 but newline and tab, DEL, C1, and Unicode's
// controls of direction. printable_lines() in python/torch_remote_cli/output.py has the same rule.
std::string readable(std::span<const std::byte> bytes);
// The same without newlines and tabs: for names.
std::string readable_line(std::span<const std::byte> bytes);

// The beginning of the text, at most `limit` bytes, cut between characters.
std::string_view cut_text(std::string_view text, size_t limit) noexcept;

}  // namespace torch_remote
