#pragma once

#include <string>
#include <string_view>

namespace torch_remote {

// The text, for a terminal or a line of the log: what is no character becomes \xNN for each byte,
// and what moves a cursor, ends a line or turns the direction of writing becomes \xNN or \uNNNN: C0
// with newline and tab, DEL, C1, the separators of lines and paragraphs, and controls of direction.
std::string escaped(std::string_view text);

// Whether escaped() changes the text.
bool needs_escapes(std::string_view text);

}  // namespace torch_remote
