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

// The text, for a terminal or a line of the log: what is no character becomes \xNN for each byte,
// and what moves a cursor, ends a line or turns the direction of writing becomes \xNN or \uNNNN: C0
// with newline and tab, DEL, C1, the separators of lines and paragraphs, and controls of direction.
std::string escaped(std::string_view text);

// Whether escaped() changes the text.
bool needs_escapes(std::string_view text);

}  // namespace torch_remote
