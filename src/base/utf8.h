#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace torch_remote {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::span<const std::byte> bytes) noexcept;

// The text, with U+FFFD in place of each byte that is not part of a character. For what people read
// and a peer wrote: the text may be wrong, or cut inside a character.
std::string readable(std::span<const std::byte> bytes);

// The beginning of the text, at most `limit` bytes, cut between characters.
std::string_view cut_text(std::string_view text, size_t limit) noexcept;

}  // namespace torch_remote
