#pragma once

#include <string>
#include <vector>

namespace torch_remote::client {

// What profiles lack, and why, until Python warns of it. Thread-safe.
void add_profile_note(std::string text);
std::vector<std::string> take_profile_notes();

}  // namespace torch_remote::client
